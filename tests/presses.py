"What several tests share: acts, press."
import os, signal, threading, time


def press(*after):
    "Press the button so many seconds from now, each time after the one before."
    def pressing():
        for seconds in after:
            time.sleep(seconds)
            os.kill(os.getpid(), signal.SIGINT)
    threading.Thread(target=pressing, daemon=True).start()

def acts(learn): return [row["act"] for row in learn.journal if row["act"] in ("launch", "close", "restart")]
