"""Threads that read and decode, and go away when there is nothing to do."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue

#: A thread that has had nothing to do for so long ends; starting another one takes a tenth of a millisecond.
_IDLE_S = 0.2


class Crew:
    """Runs tasks in threads, as many as are asked for and needed.

    Notes
    -----
    The threads know the tasks and not whoever gives them, so that a stream which is dropped goes at once. They end
    with the main thread: tasks that are still waiting then are not run.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads: set[threading.Thread] = set()
        self._process = os.getpid()

    def submit(self, task: Callable[[], None], threads: int) -> None:
        """Let a thread run `task`, which raises nothing; there are at most `threads` of them from now on."""
        with self._lock:
            self._tasks.put(task)
            if len(self._threads) < threads:
                thread = threading.Thread(target=self._work, name="bandstream-read")
                self._threads.add(thread)
                thread.start()

    def stop(self, wait: bool = True) -> None:
        """Drop the tasks that wait, and end the threads after those that run.

        Parameters
        ----------
        wait
            Until they have ended.
        """
        if self._process != os.getpid():  # threads do not come along with a fork
            return
        try:
            while True:
                self._tasks.get_nowait()
        except Empty:
            pass
        threads = list(self._threads)
        for _ in threads:
            self._tasks.put(None)
        if wait:
            for thread in threads:
                if thread is not threading.current_thread():
                    thread.join()

    def _work(self) -> None:
        main = threading.main_thread()
        while True:
            try:
                task = self._tasks.get(timeout=_IDLE_S)
            except Empty:
                with self._lock:
                    if not self._tasks.empty():
                        continue
                    self._threads.discard(threading.current_thread())
                    return
            if task is None or not main.is_alive():
                self._threads.discard(threading.current_thread())
                return
            task()
            del task  # or it, and what it knows, would live until the next one comes
