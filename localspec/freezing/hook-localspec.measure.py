"""The texts that measurements are made with."""

from PyInstaller.utils.hooks import collect_data_files

datas = collect_data_files("localspec.measure")
