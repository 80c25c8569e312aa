"""Preferences: the dialog of the settings."""

from __future__ import annotations

from PySide6.QtWidgets import (
    QDialog,
    QDialogButtonBox,
    QDoubleSpinBox,
    QFormLayout,
    QPlainTextEdit,
    QSpinBox,
    QWidget,
)

from localspec.desktop.settings import RANGES, Settings


class Preferences(QDialog):
    """What of the settings is worth a dialog; `read` puts it into them."""

    def __init__(self, parent: QWidget, settings: Settings) -> None:
        super().__init__(parent)
        self.setWindowTitle("Settings")
        self.temperature, self.n_ctx, self.system = (
            QDoubleSpinBox(),
            QSpinBox(),
            QPlainTextEdit(settings.system),
        )
        self.temperature.setRange(*RANGES["temperature"])
        self.temperature.setSingleStep(0.1)
        self.temperature.setValue(settings.temperature)
        self.n_ctx.setRange(*map(int, RANGES["n_ctx"]))
        self.n_ctx.setSingleStep(1024)
        self.n_ctx.setValue(settings.n_ctx)
        self.system.setPlaceholderText("What the model is told before every conversation")
        buttons = QDialogButtonBox(
            QDialogButtonBox.StandardButton.Ok | QDialogButtonBox.StandardButton.Cancel
        )
        buttons.accepted.connect(self.accept)
        buttons.rejected.connect(self.reject)
        form = QFormLayout(self)
        form.addRow("Temperature (0: the likeliest text)", self.temperature)
        form.addRow("Context in tokens (loads the model again)", self.n_ctx)
        form.addRow("System text", self.system)
        form.addRow(buttons)

    def read(self, settings: Settings) -> None:
        """Take over what was entered."""
        settings.temperature = round(self.temperature.value(), 2)
        settings.n_ctx, settings.system = self.n_ctx.value(), self.system.toPlainText().strip()
