"""A chat window in Tk. `python window_tk.py [NAME | TARGET.gguf [DRAFT.gguf]]`"""

import queue
import sys
import threading
import tkinter as tk
from tkinter.scrolledtext import ScrolledText

from localspec import LLM, LocalspecError


def answer(talk, question, stopped, events):
    """In a thread of its own, which knows the queue and not the window: that may be gone when the thread ends."""
    try:
        stream = talk.ask(question)
        if stopped.is_set():
            stream.cancel()
        for chunk in stream:
            events.put(("text", chunk.text))
        events.put(("end", f"{chunk.completion.stats.tokens_per_second:.1f} tokens/s"))
    except LocalspecError as error:
        events.put(("end", str(error)))


class Window(tk.Tk):
    def __init__(self, *models):
        super().__init__()
        self.title("localspec")
        self.status = tk.StringVar(self, "loading")
        self.entry, self.button = tk.Entry(self), tk.Button(self, text="Stop", command=self.stop)
        self.text = ScrolledText(self, wrap="word", state="disabled")
        tk.Label(self, textvariable=self.status, wraplength=600).pack(side="bottom", anchor="w")
        self.button.pack(side="bottom", anchor="e")
        self.entry.pack(side="bottom", fill="x")
        self.text.pack(fill="both", expand=True)
        self.entry.bind("<Return>", self.ask)
        self.protocol("WM_DELETE_WINDOW", self.close)
        self.llm, self.busy, self.stopped = None, True, threading.Event()
        self.events = events = queue.SimpleQueue()
        self.loading = LLM.load_in_background(*models, on_progress=lambda one: events.put(("progress", one)))
        self.loading.when_done(lambda: events.put(("loaded", None)))
        self.after(30, self.drain)

    def drain(self):
        for _ in range(self.events.qsize()):
            kind, value = self.events.get()
            getattr(self, f"on_{kind}")(value)
        self.after(30, self.drain)

    def on_progress(self, progress):
        self.status.set(f"{progress.sentence}: {progress.fraction:.0%}")

    def on_loaded(self, _):
        try:
            self.llm = self.loading.result()
        except LocalspecError as error:
            self.status.set(str(error))
            return
        self.talk = self.llm.conversation()
        self.on_end("ready")

    def on_text(self, text):
        self.text.configure(state="normal")
        self.text.insert("end", text)
        self.text.configure(state="disabled")
        self.text.see("end")

    def on_end(self, status):
        self.busy = False
        self.status.set(status)
        self.entry.focus()

    def ask(self, _):
        question = self.entry.get()
        if self.busy or not question.strip():
            return
        self.entry.delete(0, "end")
        self.on_text(f"\n\n> {question}\n")
        self.status.set("answering")
        self.busy, self.stopped = True, threading.Event()
        work = (self.talk, question, self.stopped, self.events)
        threading.Thread(target=answer, args=work, daemon=True).start()

    def stop(self):
        self.stopped.set()
        if self.llm:
            self.llm.cancel()

    def close(self):
        self.destroy()
        self.loading.cancel()
        if self.llm:
            self.llm.close(wait=False)


if __name__ == "__main__":
    window = Window(*sys.argv[1:] or ["qwen2.5-coder-1.5b"])  # held until the end: Tk must end in this thread
    window.mainloop()
