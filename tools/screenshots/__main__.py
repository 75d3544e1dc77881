"""``python -m tools.screenshots FOLDER --days 7``: live through a past, then answer on FOLDER/perphd.sock."""

from __future__ import annotations

import argparse
import asyncio
import logging
from pathlib import Path

from tools.screenshots.host import DAY_S, LivingHost, Past, comes_and_goes, nightly


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--days", type=float, default=7.0, help="of the past; 0: go on with the store in FOLDER"
    )
    parser.add_argument("--period", type=float, default=30.0, help="of the past, s")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    logging.disable(logging.CRITICAL)
    asyncio.run(_serve(given.folder, given.days * DAY_S, given.period))


async def _serve(folder: Path, seconds: float, period_s: float) -> None:
    events = (
        nightly(seconds, 4) if seconds else comes_and_goes([(2.0, "report", True), (20.0, "encode", True)])
    )
    past = Past(seconds, period_s, events, resctrl=True)
    living = LivingHost(folder, past)
    await living.remember()
    async with living.living() as agent:
        print(f"{agent.config.daemon.socket}: answers", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    main()
