"""Signals: deferred to the end of a block, raised where it stands, and never lost."""

import gc
import os
import signal
import sys
import threading

import pytest

from dpjax.runner import signals

PAIR = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", PAIR)
def test_a_deferred_signal_waits(number):
    done = []
    with pytest.raises(signals.Stopped) as stopped, signals.raised():
        with signals.deferred():
            os.kill(os.getpid(), number)
            done.append("block")
        done.append("never")
    assert done == ["block"] and stopped.value.args == (number,)


def test_a_deferred_signal_comes_also_if_the_block_fails():
    with pytest.raises(signals.Stopped), signals.raised(), signals.deferred():
        os.kill(os.getpid(), signal.SIGINT)
        raise ValueError


def test_a_signal_whose_exception_was_dropped_is_found_again():
    with pytest.raises(signals.Stopped), signals.raised():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except signals.Stopped:
            pass
        signals.check()
    signals.check()


def test_a_signal_during_garbage_collection_is_found_again_and_prints_nothing(capfd):
    def on_collection(phase, info):
        if phase == "start":
            os.kill(os.getpid(), signal.SIGTERM)

    hook = sys.unraisablehook
    with pytest.raises(signals.Stopped), signals.raised():
        gc.callbacks.append(on_collection)
        try:
            gc.collect()
        finally:
            gc.callbacks.remove(on_collection)
        signals.check()
    assert capfd.readouterr().err == "" and sys.unraisablehook is hook


def test_handlers_are_put_back_and_ignored_signals_stay_so():
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with signals.raised():
            os.kill(os.getpid(), signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_install_nothing():
    def work():
        with signals.raised(), signals.deferred():
            seen.append([signal.getsignal(number) for number in PAIR])

    seen = [[signal.getsignal(number) for number in PAIR]]
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(seen) == 2 and seen[0] == seen[1]
