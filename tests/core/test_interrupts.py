"What an interrupt may break, and what not."
import sys, time

from trainer_nb.core.interrupts import InterruptGuard, Reminder


def test_the_guards_own_code_is_not_interrupted_even_when_an_interrupt_has_waited_too_long():
    "It ends soon; broken in the middle, it would leave its handler behind."
    frames = []
    def trace(frame, event, arg):
        if frame.f_code is InterruptGuard.__exit__.__code__: frames.append(frame)
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        with InterruptGuard(at_once=True): pass
    finally: sys.settrace(before)
    reminder = Reminder()
    reminder.since = time.monotonic() - 10
    assert frames and not reminder.may_break(frames[0]) and reminder.may_break(sys._getframe())
