"""Run the incidents and the healthy programs, and print what is found, by which tool.

    python tests/incidents/run_incidents.py [names ...]            all incidents and healthy programs, or those named
    python tests/incidents/run_incidents.py --findings [names ...] also print each finding

The name of a module, such as held_out_incidents, stands for all that it has."""
import argparse
import ast
import contextlib
import importlib
import io
import re
import runpy
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
from healthy import HEALTHY
from tiny import INCIDENTS

from trainer_nb import Learner

for kind in ("data", "model", "loop", "process", "held_out", "second_held_out", "third_held_out"): importlib.import_module(f"{kind}_incidents")
for kind in ("held_out", "second_held_out", "third_held_out"): importlib.import_module(f"{kind}_healthy")

EXAMPLES = Path(__file__).resolve().parents[2]/"examples"
# what only looks, and cures nothing
LOOKS = {"check", "diagnose", "inspect", "lr_find", "show_batch", "predict", "stop", "step"}
TOOLS = ("check", "run", "diagnose", "inspect")


class Seen(NamedTuple):
    "What a tool has said of a program."
    tool: str
    text: str
    do: str
    seconds: float

    @property
    def key(self): return self.tool, re.sub(r"[\d.,e+-]+", "#", self.text)


def findings(tool, found, seconds): return [Seen(tool, f"{o.seen}; {o.meaning}", o.do, seconds) for o in found]


def look(build, around, finish, deep=True):
    "Build a learner, check it, train it and diagnose it, as a user would; return it and what was seen. Without `deep`, do not inspect."
    seen, begin = [], time.perf_counter()
    def passed(): return time.perf_counter() - begin
    learn = None
    with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("always")
        try:
            learn = build()
            seen += findings("check", learn.check(), passed())
            # conspicuous layers of the first step
            if deep: seen += [Seen("inspect", o, "", passed()) for o in re.findall(r"^• (.*)", str(learn.inspect()), re.M)]
            with around(learn): finish(learn)
        except Exception as error:
            seen.append(Seen("run", f"{type(error).__name__}: {error}", "", passed()))
        if learn is not None and learn.state.global_step:
            try: seen += findings("diagnose", learn.diagnose(), passed())
            except Exception as error: seen.append(Seen("run", f"diagnose() fails: {type(error).__name__}: {error}", "", passed()))
    seen += [Seen("run", str(o.message), "", passed()) for o in warned if issubclass(o.category, UserWarning)]
    return learn, list({o.key: o for o in reversed(seen)}.values())[::-1]


def line_of(do):
    "Return what to do as code, if it is a call or an assignment that cures something; otherwise None."
    if re.match(r"\w+=", do): do = f"learn.args.{do}"
    try: last = ast.parse(do or "pass").body[-1]
    except SyntaxError: return None
    call = getattr(last, "value", None)
    looks = isinstance(call, ast.Call) and getattr(call.func, "attr", "") in LOOKS
    return do if isinstance(last, ast.Assign | ast.AugAssign) or isinstance(call, ast.Call) and not looks else None


def typed(incident, finding, score, twin):
    "Whether the faulty program ends where its twin ends after the line of a finding: 'yes', 'no', or why it could not be typed."
    line = line_of(finding.do)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            learn = incident.faulty()
            # what diagnose() proposes is typed after the run
            if finding.tool == "diagnose": incident.finish(learn)
            exec(line, {"learn": learn, "model": learn.model, "torch": torch})
            if ".train(" not in line:
                with incident.around(learn): incident.finish(learn)
            value, wanted, plain = score(learn), score(twin), incident.faulty()
            with incident.around(plain): incident.finish(plain)
            plain = score(plain)
        except Exception as error: return f"fails: {type(error).__name__}"
    # of the distance to the twin, three quarters are gone; a faulty program may end in NaN
    return "yes" if value <= wanted + (0.25*max(plain - wanted, 0) if plain == plain else 0.1*abs(wanted)) else "no"


def evaluated(learn): return learn.evaluate()["eval_loss"]


def run_incident(incident):
    "Return the row of the table, and the findings of the faulty program and its twin."
    score = incident.score or evaluated
    _, faulty = look(incident.faulty, incident.around, incident.finish)
    learn, twin = look(incident.twin, incident.around, incident.finish)
    known = {o.key for o in twin}
    new = [o for o in faulty if o.key not in known]
    named = [o for o in new if any(word.lower() in f"{o.text} {o.do}".lower() for word in incident.words)]
    best = min(named or new, key=lambda o: TOOLS.index(o.tool), default=None)
    lines = [o for o in named or new if line_of(o.do)]
    samples = "named" if any(re.search(r"samples? \d", o.text) for o in new) else "no"
    row = {"incident": incident.name, "kind": incident.kind, "found": "yes" if best else "no", "by": best.tool if best else "",
           "seconds": f"{best.seconds:.1f}" if best else "", "cause": "named" if named else "", "samples": samples if incident.samples else "",
           "line": typed(incident, lines[0], score, learn) if lines else "not tried", "false": sum(o.tool != "inspect" for o in twin)}
    return row, new, [o for o in twin if o.tool != "inspect"]


def examples():
    "Return a function for each script of examples/ that checks the learner which the script would train."
    def run(path):
        caught = []
        class Caught(Exception): pass
        def train(learn, *args, **kwargs):
            caught.append(learn)
            raise Caught
        before, argv = {n: getattr(Learner, n) for n in ("train", "lr_find", "launch")}, sys.argv
        try:
            for name in before: setattr(Learner, name, train)
            sys.argv = [str(path), "--quick", *(["true"] if path.stem == "text_classification" else [])]
            runpy.run_path(str(path), run_name="__main__")
        except Caught: pass
        finally:
            for name, method in before.items(): setattr(Learner, name, method)
            sys.argv = argv
        return caught[0]
    # fsdp.py needs several processes
    return {f"examples/{o.name}": (lambda o=o: run(o)) for o in sorted(EXAMPLES.glob("*.py")) if o.stem != "fsdp"}


def run_healthy(build, trains=True):
    "Return what is found in a healthy program."
    return look(build, lambda learn: contextlib.nullcontext(), (lambda learn: learn.train()) if trains else lambda learn: None, deep=False)[1]


def print_row(row, widths=(28, 10, 6, 9, 8, 6, 8, 16, 6)):
    print("".join(str(o).ljust(n) for o, n in zip(row, widths)).rstrip(), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--findings", action="store_true", help="print each finding")
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    def wanted(name, build): return not given.names or name in given.names or build.__module__ in given.names
    chosen = [o for o in INCIDENTS if wanted(o.name, o.build)]
    rows, false = [], {}
    print_row(["incident", "kind", "found", "by", "seconds", "cause", "samples", "line typed", "false"])
    for incident in chosen:
        row, new, twin = run_incident(incident)
        rows.append(row)
        false[f"{incident.name}, twin"] = twin
        print_row(row.values())
        for o in new if given.findings else (): print(f"    {o.tool}: {o.text[:300]}\n        -> {o.do}")
        for o in twin: print(f"    FALSE {o.tool}: {o.text[:300]}")
    programs = {n: (o, True) for n, o in HEALTHY.items()} | {n: (o, False) for n, o in examples().items()}
    for name, (build, trains) in programs.items():
        if not wanted(name, build): continue
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder): false[name] = run_healthy(build, trains)
        for o in false[name]: print(f"    FALSE in {name}, {o.tool}: {o.text[:300]}", flush=True)
    print(f"\nFound {sum(o['found'] == 'yes' for o in rows)} of {len(rows)} incidents, the cause named in {sum(o['cause'] == 'named' for o in rows)}, a line ends as the twin in {sum(o['line'] == 'yes' for o in rows)}; "
          f"{sum(map(bool, false.values()))} of {len(false)} healthy programs have a false finding ({sum(map(len, false.values()))} findings).")


if __name__ == "__main__": main()
