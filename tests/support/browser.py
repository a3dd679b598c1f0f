"""A headless Chromium, driven by its DevTools protocol over a pipe: no port, no library, no driver.

The browser resolves no name, so it reaches loopback addresses and nothing else. Messages are JSON, each ended by NUL
(Chrome DevTools Protocol 1.3; ``--remote-debugging-pipe``: it reads from descriptor 3 and writes to descriptor 4).
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.support.limits import limit_s

_ANSWER_S = 30.0
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_ARGUMENTS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # tests run as root, where its sandbox refuses to start; it opens our own page only
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--no-default-browser-check",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)


def missing() -> str:
    """Why there is no browser here, or ""."""
    if any(shutil.which(name) for name in _NAMES):
        return ""
    return f"no {', '.join(_NAMES)} is installed: tests/system-packages.sh installs chromium as root"


class Browser:
    """One browser process; its profile is in ``folder``."""

    def __init__(self, folder: Path) -> None:
        program = next(path for name in _NAMES if (path := shutil.which(name)))
        (theirs_in, self._out), (self._in, theirs_out) = _pipe(), _pipe()

        def place() -> None:
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        self._log = folder / "browser.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [program, *_ARGUMENTS, f"--user-data-dir={folder / 'profile'}", "about:blank"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(3, 4),
                preexec_fn=place,  # noqa: PLW1509 - two dup2 and nothing else; Popen cannot give a descriptor a number
                env={**os.environ, "HOME": str(folder)},
                start_new_session=True,
            )
        os.close(theirs_in)
        os.close(theirs_out)
        self._number, self._received = 0, bytearray()

    def open(self, url: str, *, width: int = 1100, height: int = 900, dark: bool = False) -> Tab:
        """A tab of this size that shows this address."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session, target)
        scheme = "dark" if dark else "light"
        tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        tab.resize(width, height)
        tab.call("Page.navigate", url=url)
        return tab

    def close(self) -> None:
        """End the browser."""
        self.call("Browser.close")
        self._process.wait(timeout=limit_s(20))
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, session: str = "", **parameters: Any) -> dict[str, Any]:
        """One command and its answer; events in between are passed over."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        os.write(self._out, json.dumps({**message, **({"sessionId": session} if session else {})}).encode() + b"\0")
        until = time.monotonic() + limit_s(_ANSWER_S)
        while True:
            answer = self._message(until, method)
            if answer.get("id") == self._number:
                break
        if "error" in answer:
            raise AssertionError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _message(self, until: float, method: str) -> dict[str, Any]:
        while (end := self._received.find(b"\0")) < 0:
            if not select.select([self._in], [], [], max(0.0, until - time.monotonic()))[0]:
                raise AssertionError(f"{method}: no answer within {limit_s(_ANSWER_S):g} s: {self._log_text()}")
            chunk = os.read(self._in, 1 << 20)
            if not chunk:
                raise AssertionError(f"{method}: the browser ended: {self._log_text()}")
            self._received += chunk
        message: dict[str, Any] = json.loads(self._received[:end])
        del self._received[: end + 1]
        return message

    def _log_text(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]


class Tab:
    """One page of a browser."""

    def __init__(self, browser: Browser, session: str, target: str) -> None:
        self._browser, self._session, self._target = browser, session, target

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol to this tab."""
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width: int, height: int = 900) -> None:
        """Set the viewport, in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise AssertionError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression: str, within_s: float = 15.0) -> None:
        """Wait until an expression is true."""
        until = time.monotonic() + limit_s(within_s)
        while not self.evaluate(f"Boolean({expression})"):
            if time.monotonic() > until:
                page = self.evaluate("document.body.innerText.slice(0, 1500)")
                raise AssertionError(f"not within {limit_s(within_s):g} s: {expression}\n{page}")
            time.sleep(0.1)

    def press(self, key: str) -> None:
        """Press a key and let go of it."""
        text: dict[str, Any] = (
            {"text": key} if len(key) == 1 else {"windowsVirtualKeyCode": {"Tab": 9, "Enter": 13}[key]}
        )
        if key == "Enter":
            text["text"] = "\r"
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    def screenshot(self, path: Path, *, height: int | None = None) -> None:
        """Save what is shown as PNG; with ``height``, so many pixels of it from the top."""
        if height is not None:
            self.resize(self.evaluate("innerWidth"), height)
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self) -> None:
        """Close the tab."""
        self._browser.call("Target.closeTarget", targetId=self._target)


def _pipe() -> tuple[int, int]:
    """A pipe (to read, to write) whose descriptors are none of those that the browser wants."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]
