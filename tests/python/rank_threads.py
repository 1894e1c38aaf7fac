"""Worlds whose ranks are threads of this process, each with a Checkpointer of its own; they meet through a folder."""

import itertools
import threading

import neve


class World:
    """Ranks that do the same thing at the same time."""

    _count = itertools.count()

    def __init__(self, folder, size, tiers=None):
        self.folder, self.size = folder, size
        self.group = f"dir:{folder / f'group-{next(self._count)}'}"
        self.tiers = tiers or [f"file:{folder}"]

    def run(self, body):
        """body(rank, checkpointer) on every rank; what each returned, by rank. The first error is raised."""
        results, errors = [None] * self.size, []

        def work(rank):
            try:
                with neve.Checkpointer(self.folder / "job", self.tiers, rank=rank, world=self.size, group=self.group,
                                       group_timeout=60) as checkpointer:
                    results[rank] = body(rank, checkpointer)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        return results
