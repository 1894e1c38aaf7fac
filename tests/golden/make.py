"""Writes the golden files of the present format beside this program: `./dev python tests/golden/make.py`.

Run once for each version of the format and never again: what lies there must open for ever. `state.safetensors` is a single file of
before those carried digests, which this neve no longer writes; `state.digests.safetensors` is one of since.
"""

import shutil
from pathlib import Path

import states

import neve

HERE = Path(__file__).parent / "format-1"


def main() -> None:
    HERE.mkdir()
    neve.save({**states.tensors(), "values": {key: value for key, value in states.values().items() if key != "numbers"}},
              HERE / "state.digests.safetensors")
    with neve.Checkpointer("golden", tiers=[f"file:{HERE}"]) as checkpointer:
        checkpointer.save(7, states.everything(), tags={"loss": 0.25, "phase": "warm-up", "best": True}).wait("file")
    shutil.rmtree(HERE / "golden" / ".spare", ignore_errors=True)


if __name__ == "__main__":
    main()
