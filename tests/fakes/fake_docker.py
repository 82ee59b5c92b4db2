"""A docker that is none: its daemon runs an image's words as a process of its own, and every command is written down.

`fake_docker.py daemon FOLDER` serves FOLDER/socket; `fake_docker.py client FOLDER WORDS...` is the command `docker`.
FOLDER has `python`, which stands for every image's; a file `refuse` makes `run` fail with its text, `pulled` says that
the image is at hand.
"""

from __future__ import annotations

import array
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

DIGEST = "ab" * 32


class Daemon:
    def __init__(self, folder: Path) -> None:
        self.folder, self.containers = folder, dict[str, tuple[str, subprocess.Popen[bytes]]]()

    def serve(self) -> None:
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(str(self.folder / "socket"))
            door.listen()
            print("up", flush=True)
            while True:
                threading.Thread(target=self.answer, args=(door.accept()[0],), daemon=True).start()

    def answer(self, link: socket.socket) -> None:
        fds = array.array("i")
        text, control, *_ = link.recvmsg(1 << 20, socket.CMSG_SPACE(3 * fds.itemsize))
        fds.frombytes(control[0][2])
        asked = json.loads(text)
        words, env, code = asked["words"], asked["env"], 0
        if words[0] == "run":
            code = self.run(link, words, env, list(fds))
        elif words[0] == "ps":
            label = next(word for word in words if word.startswith("--filter=label=")).removeprefix("--filter=label=")
            found = [name for name, (its, one) in self.containers.items() if its == label and one.poll() is None]
            os.write(fds[1], "".join(f"{name}\n" for name in found).encode())
        elif words[0] == "rm":
            for name in words[1:]:
                if name in self.containers:
                    self.containers[name][1].kill()
                    self.containers[name][1].wait()
        for fd in fds:
            os.close(fd)
        with suppress(OSError):
            link.sendall(json.dumps({"code": code}).encode())

    def run(self, link: socket.socket, words: list[str], env: dict[str, str], fds: list[int]) -> int:
        entry = next(i for i, word in enumerate(words) if word.startswith("--entrypoint="))
        label = next(word for word in words if word.startswith("--label=")).removeprefix("--label=")
        carried = [word.removeprefix("--env=").partition("=") for word in words[:entry] if word.startswith("--env=")]
        inside = {name: value if given else env.get(name, "") for name, given, value in carried}
        argv = [str(self.folder / "python"), *words[entry + 2 :]]
        inside["PATH"] = "/usr/bin:/bin"
        one = subprocess.Popen(argv, env=inside, stdin=fds[0], stdout=fds[1], stderr=fds[2], start_new_session=True)
        self.containers[f"c{len(self.containers)}"] = (label, one)
        threading.Thread(target=self.forward, args=(link, one), daemon=True).start()
        code = one.wait()
        return code if code >= 0 else 128 - code

    def forward(self, link: socket.socket, one: subprocess.Popen[bytes]) -> None:
        with suppress(OSError):
            while link.recv(16):
                one.terminate()


def client(folder: Path, words: list[str]) -> int:
    with (folder / "commands.jsonl").open("a") as file:
        file.write(json.dumps({"words": words, "env": sorted(os.environ)}) + "\n")
    if words[0] == "version":
        print((folder / "version").read_text())
        return 0
    if words[0] == "pull":
        (folder / "pulled").touch()
        return 0
    if words[:2] == ["image", "inspect"]:
        print(json.dumps([{"Id": "sha256:1d", "RepoDigests": [f"{words[2].partition(':')[0]}@sha256:{DIGEST}"]}]))
        return int(not (folder / "pulled").exists())
    if words[0] == "run" and (folder / "refuse").exists():
        print((folder / "refuse").read_text(), file=sys.stderr)
        return 125
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(folder / "socket"))
        text = json.dumps({"words": words, "env": dict(os.environ)}).encode()
        link.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))])
        signal.signal(signal.SIGTERM, lambda *_: link.send(b"TERM"))
        return int(json.loads(link.recv(1 << 16) or b'{"code": 1}')["code"])


if __name__ == "__main__":
    if sys.argv[1] == "daemon":
        Daemon(Path(sys.argv[2])).serve()
    sys.exit(client(Path(sys.argv[2]), sys.argv[3:]))
