"""The output of a response, item by item, and the events that tell of it."""

from __future__ import annotations

import secrets
from typing import Any

from localspec.server.reader import Delta

Event = dict[str, Any]


class OutputItems:
    """Turns a reader's deltas into items, and into events that lack only their sequence numbers.

    items: all so far. The last one grows until `finish`.
    """

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._kind = ""
        self._call = -1

    def push(self, delta: Delta) -> list[Event]:
        """Events for one delta."""
        if delta.get("reasoning_content"):
            return self._text("reasoning", delta["reasoning_content"])
        if delta.get("content"):
            return self._text("message", delta["content"], delta.get("logprobs", []))
        return [event for call in delta.get("tool_calls", ()) for event in self._call_piece(call)]

    def empty(self) -> list[Event]:
        """Events for an answer without text."""
        return self._open_text("message")

    def finish(self, status: str = "completed") -> list[Event]:
        """Events for the end of the last item. status: of that item, `completed` or `incomplete`."""
        if not self._kind:
            return []
        item, kind = self.items[-1], self._kind
        self._kind, self._call = "", -1
        item["status"] = status
        if kind == "function_call":
            ends = [
                self._event("function_call_arguments.done", name=item["name"], arguments=item["arguments"])
            ]
        else:
            part = item["content"][0]
            logprobs: Event = {"logprobs": part["logprobs"]} if kind == "message" else {}
            ends = [
                self._event(f"{part['type']}.done", content_index=0, text=part["text"], **logprobs),
                self._event("content_part.done", content_index=0, part=dict(part)),
            ]
        return [*ends, self._item_event("done")]

    def _text(self, kind: str, text: str, tokens: list[dict[str, Any]] | None = None) -> list[Event]:
        events = [] if self._kind == kind else [*self.finish(), *self._open_text(kind)]
        part = self.items[-1]["content"][0]
        part["text"] += text
        logprobs: Event = {}
        if kind == "message":
            logprobs["logprobs"] = tokens or []
            part["logprobs"] = part["logprobs"] + logprobs["logprobs"]  # events of before keep theirs
        return [*events, self._event(f"{part['type']}.delta", content_index=0, delta=text, **logprobs)]

    def _open_text(self, kind: str) -> list[Event]:
        part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        item: dict[str, Any] = {"id": _name("msg"), "type": "message", "role": "assistant", "content": []}
        if kind == "reasoning":
            part = {"type": "reasoning_text", "text": ""}
            item = {"id": _name("rs"), "type": "reasoning", "summary": [], "content": []}
        events = self._open(kind, item)
        item["content"] = [part]
        return [*events, self._event("content_part.added", content_index=0, part=dict(part))]

    def _call_piece(self, call: dict[str, Any]) -> list[Event]:
        function, events = call["function"], []
        if call["index"] != self._call:
            events = self.finish()
            item = {
                "id": _name("fc"),
                "type": "function_call",
                "call_id": call["id"],
                "name": function["name"],
            }
            events += self._open("function_call", {**item, "arguments": ""})
            self._call = call["index"]
        text = function.get("arguments") or ""
        self.items[-1]["arguments"] += text
        return [*events, *([self._event("function_call_arguments.delta", delta=text)] if text else [])]

    def _open(self, kind: str, item: dict[str, Any]) -> list[Event]:
        self._kind = kind
        item["status"] = "in_progress"
        self.items.append(item)
        return [self._item_event("added")]

    def _event(self, kind: str, **fields: Any) -> Event:
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return {"type": f"response.{kind}", **place, **fields}

    def _item_event(self, kind: str) -> Event:
        item = self.items[-1]
        return {
            "type": f"response.output_item.{kind}", "output_index": len(self.items) - 1, "item": dict(item),
        }  # fmt: skip


def _name(kind: str) -> str:
    return f"{kind}_{secrets.token_hex(24)}"
