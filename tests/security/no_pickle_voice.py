"""The voice pipeline with pickle out of order in every process of it, once it is ready."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

from no_pickle import Watch


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="antiphon-test-") as folder:
        watch = Watch(Path(folder))
        os.environ["PYTHONPATH"] = watch.hook()  # of the stages
        watch.watch()
        from antiphon import Omni

        with Omni("voice") as omni:
            watch.arm()
            try:
                reply = omni.chat("What is the capital of France?")
                spoken = omni.say("Good morning.")
            finally:
                watch.disarm()
                print(*watch.uses, sep="\n", file=sys.stderr)
        assert reply.audio is not None
        assert spoken.audio is not None
        found = {
            "text": reply.text,
            "seconds": [part.audio.size / part.sample_rate for part in (reply, spoken)],
            "uses": watch.uses,
            "watched": watch.watched,
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
