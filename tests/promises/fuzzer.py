"""Random runs that are disturbed in random ways and must end as if they had not been, byte for byte.

    python tests/promises/fuzzer.py --runs 1000 --seed 0 --resume fuzz.jsonl

A seed gives a case: a configuration (model, optimizer, schedule, data, callbacks, settings) and a list of Python lines, which
train, fail, are interrupted, look and go back in time. The reference trains in one go; the disturbed run executes the lines
and then trains to the end. A case that fails is reduced: lines and parts of the configuration are left out while it still fails.
"""
import argparse, contextlib, faulthandler, gc, io, json, multiprocessing, random, re, shutil, signal, sys, tempfile, threading, time, traceback, warnings
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
import torch

from ingredients import (BODIES, BY_HAND, MADE_SCHEDULES, NAMED_OPTIMIZERS, NAMED_SCHEDULES, PLACES, Boom, make_data, make_learner,
                         press, pressing_at_line, state_of)
from trainer_nb import InvalidOperation

PER_CONFIG = 4   # neighbouring seeds share a configuration, and thereby a reference
RUNS_OUT = 60    # seconds after which a case counts as hanging

# What the fuzzer covers besides the basics. A name that is taken out leaves the feature out of all cases.
FEATURES = frozenset({
    "eval_part",           # parts of the model begin in evaluation mode
    "cell_eval",           # model.eval() in a cell
    "extra_state",         # modules with get_extra_state
    "module_state",        # a generator and a counter in a module
    "data_state",          # a generator and a counter in a data set
    "callback_state",      # state of callbacks before the commit, and without a state_dict
    "callback_draws",      # callbacks that draw random numbers
    "learner_state",       # attributes of a subclass
    "optimizer_state",     # optimizers whose state_dict adds something
    "acts_on_pending",     # evaluate() and log() by hand while tasks of the run are pending
    "data_writes",         # weights that are moved through .data
    "begin_on_resume",     # on_train_begin in a new process
    "branch_hooks",        # branches of models with parameter hooks and the old weight norm
    "changed_groups",      # set(weight_decay=) and back, with schedules that count the groups
    "rate_in_warmup",      # set(lr=) before the first step of a warm-up
    "planned_epochs",      # plan() replaces the schedule and the length
    "failing_schedule",    # a schedule that raises
    "any_line",            # interrupts at any line of the package
})


class Case(NamedTuple):
    "A configuration and the lines that disturb its run."
    config: dict
    lines: list
    seed: int | None = None


# --- cases -------------------------------------------------------------------------------------------------------------

PLAIN = {"model": "dense", "optim": "adamw_torch", "schedule": "linear", "data": "rows", "samples": 12, "learner": "plain", "callbacks": [], "acts": [],
         "saves": False, "args": {"learning_rate": 0.01, "per_device_train_batch_size": 3, "num_train_epochs": 2, "logging_steps": 2}}


def choose_model(rng, features):
    "The name of a model."
    names = [n for n in BODIES if n not in ("eval_part", "counting", "drawing")]
    names += ["eval_part"] * ("eval_part" in features) + ["counting"] * ("extra_state" in features) + ["drawing"] * ("module_state" in features)
    return rng.choice(names)


def choose_callbacks(rng, features):
    "Names of callbacks."
    names = ["counter", "averaged_with_state", "rates", "wishes", "stops"]
    if "callback_state" in features: names += ["plain_counter", "early_counter", "averaged"]
    if "callback_draws" in features: names += ["draws"]
    chosen = rng.sample(names, rng.choice([0, 1, 1, 2, 3]))
    return [n for n in chosen if n != "averaged" or "averaged_with_state" not in chosen]


def choose_args(rng, config):
    "Settings."
    args = {"learning_rate": 0.01, "per_device_train_batch_size": rng.choice([2, 3, 4]), "gradient_accumulation_steps": rng.choice([1, 1, 2, 3]),
            "logging_steps": rng.choice([1, 2, 3]), "max_grad_norm": rng.choice([0.0, 0.1, 1.0]), "weight_decay": rng.choice([0.0, 0.1]),
            "rollback": rng.choice(["light"] * 4 + ["full"]), "rewind_every": rng.choice([None, 1, 3])}
    if config["data"] == "stream" or rng.random() < 0.4: args["max_steps"] = rng.randint(6, 12)
    else: args["num_train_epochs"] = rng.choice([1, 2, 3])
    if config["schedule"] in NAMED_SCHEDULES and config["schedule"] != "one_cycle": args["warmup_steps"] = rng.choice([0, 0, 2, 3])
    if rng.random() < 0.5 or config["schedule"] == "reduce_lr_on_plateau" or "wishes" in config["callbacks"]:
        args |= {"eval_strategy": "steps", "eval_steps": rng.choice([1, 2, 3]), "metric_for_best_model": "loss", "greater_is_better": False}
        if rng.random() < 0.2: args["eval_strategy"] = "epoch"
        if rng.random() < 0.2: args["eval_on_start"] = True
    if config["saves"]: args |= {"save_strategy": "steps", "save_steps": rng.choice([2, 3, 4]), "save_total_limit": rng.choice([None, 2])}
    if config["saves"] and args.get("eval_strategy") == "steps" and rng.random() < 0.5:
        args |= {"load_best_model_at_end": True, "save_steps": args["eval_steps"]}
    if rng.random() < 0.1: args["logging_strategy"] = "epoch"
    if rng.random() < 0.1: args["dataloader_drop_last"] = True
    if config["data"] != "counted" and rng.random() < 0.06:
        args |= {"dataloader_num_workers": 1, "dataloader_persistent_workers": rng.random() < 0.5}
    return args


def choose_acts(rng, config, features):
    "Changes that the reference makes as well: (step, setting, value)."
    if rng.random() > 0.3 or "rates" in config["callbacks"]: return []
    chosen = [(rng.randint(1, 5), "lr", 0.003), (rng.randint(1, 5), "max_grad_norm", 0.5), (rng.randint(1, 5), "logging_steps", 4)]
    if "changed_groups" in features and config["optim"] != "lookahead": chosen.append((rng.randint(1, 5), "weight_decay", 0.2))
    if "rate_in_warmup" in features: chosen.append((0, "lr", 0.003))
    if config["schedule"] in ("sequential", "chained", "cyclic", "cycle", "one_cycle", "reduce_lr_on_plateau", "product", "zigzag"):
        chosen = [c for c in chosen if c[1] != "lr"]
    return [list(rng.choice(chosen))]


def choose_plan(config):
    "A plan of more epochs with another schedule, that the reference makes as well; it does not move the numbers that choose the rest."
    rng = random.Random(f"plan {config}")
    if rng.random() > 0.15 or config["acts"] or config["data"] == "stream" or config["schedule"] not in NAMED_SCHEDULES: return []
    if "rates" in config["callbacks"]: return []
    return [[rng.randint(0, 5), "plan", [rng.choice([1, 2]), 0.004, rng.choice(["constant", "cosine", "one_cycle"])]]]


def make_config(rng, features) -> dict:
    "A random configuration."
    config = {"model": choose_model(rng, features), "samples": rng.randint(9, 14), "saves": rng.random() < 0.25}
    config["optim"] = rng.choice([*NAMED_OPTIMIZERS, "halfway", "noisy", "given", *(["lookahead"] if "optimizer_state" in features else [])])
    config["schedule"] = rng.choice([*NAMED_SCHEDULES, *(n for n in MADE_SCHEDULES if n != "zigzag" or "failing_schedule" in features)])
    config["data"] = rng.choice(["rows", "noise", "pairs", "stream", *(["counted"] if "data_state" in features else [])])
    config["learner"] = rng.choice(["plain"] * 6 + ["baseline"] * ("learner_state" in features) + ["attacked"] * ("data_writes" in features))
    config["callbacks"] = choose_callbacks(rng, features)
    config["args"] = choose_args(rng, config)
    # BatchNorm takes no batch of one sample
    if config["samples"] % config["args"]["per_device_train_batch_size"] == 1: config["samples"] += 1
    if config["learner"] == "attacked": config["args"]["rollback"] = "full"
    config["acts"] = choose_acts(rng, config, features)
    if "planned_epochs" in features: config["acts"] += choose_plan(config)
    return config


FORWARD_PLACES = ("getitem", "collate", "forward", "end of forward", "compute_loss", "loss", "backward", "baseline", "attack")
EVENT_PLACES = ("on_train_begin", "on_epoch_begin", "on_step_begin", "on_substep_end", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end",
                "on_log", "on_evaluate", "on_prediction_step", "on_save", "on_epoch_end", "on_train_end", "on_pause", "on_resume")
OTHER_PLACES = ("optimizer", "halfway", "metrics")


def choose_training(rng):
    "A line that trains."
    n = rng.randint(1, 4)
    return rng.choice([f"learn.step(upto({n}))", "learn.step()", f"learn.run(steps=upto({n}))", f"learn.run(until=reached({n}))",
                       f"reach = reached({n})\nfor record in learn.steps():\n    if reach(record): break", "train(learn)", "one_by_hand(learn)"])


def choose_failure(rng, features):
    "A line that arms a place."
    places = FORWARD_PLACES + EVENT_PLACES + OTHER_PLACES + ("schedule",) * ("failing_schedule" in features)
    place, n = rng.choice(places), rng.choice([1, 1, 2, 3, 5, 9])
    if rng.random() < 0.6: return f"arm({place!r}, {n})"
    return f"arm({place!r}, {n}, press={rng.choice([1, 2, 2])})"


LOOKS = ("learn.evaluate(by_hand)", "learn.evaluate()", "learn.evaluate(by_hand, metric_key_prefix='manual')", "learn.predict(by_hand)",
         "learn.log({'manual': 1.0})", "learn.inspect()", "learn.top_losses(2)", "learn.lr_find(num_steps=10)", "learn.summary()", "learn.show_batch()",
         "given_up(learn)", "draw()", "learn.model.train()")
BY_HAND_LINES = ("learn.evaluate", "learn.log", "learn.predict", "learn.top_losses")


def choose_look(rng, features):
    "A line that must not change the run."
    return rng.choice([*LOOKS, *(["learn.model.eval()"] if "cell_eval" in features else [])])


def choose_travel(rng, config, features):
    "A line that goes back in time, or goes on elsewhere."
    name = rng.choice("ab")
    lines = [f"learn.snapshot({name!r})", f"learn.snapshot({name!r})", f"if {name!r} in learn.snapshots: learn.restore({name!r})",
             f"if {name!r} in learn.snapshots: learn.restore({name!r})", f"back(learn, {rng.randint(1, 4)})", f"back(learn, {rng.randint(1, 4)})",
             "learn = other_process(learn)"]
    if config["optim"] != "given" and ("branch_hooks" in features or config["model"] not in ("parameter_hook", "old_weight_norm", "hooks")):
        lines += ["branch_to_the_end(learn)", f"branch_and_leave(learn, {rng.randint(1, 3)})"]
    if not config["acts"] and "rates" not in config["callbacks"]:
        changes = ["lr=0.002", "max_grad_norm=0.2", "gradient_accumulation_steps=2"]
        if "changed_groups" in features and config["optim"] != "lookahead": changes.append("weight_decay=0.3")
        lines += [f"changed_for_a_while(learn, {rng.randint(1, 2)}, {rng.choice(changes)})", "anew(learn)"]
    return rng.choice(lines)


def make_lines(rng, config, features) -> list:
    "Random lines for a configuration."
    lines = []
    for _ in range(rng.randint(4, 10)):
        kind = rng.choices(["train", "fail", "look", "travel", "line"], [4, 4, 2, 3, "any_line" in features])[0]
        if kind == "train": lines.append(choose_training(rng))
        elif kind == "fail": lines += [choose_failure(rng, features), *([choose_training(rng)] if rng.random() < 0.5 else [])]
        elif kind == "look": lines.append(choose_look(rng, features))
        elif kind == "travel": lines.append(choose_travel(rng, config, features))
        else:
            at = rng.randint(1, 2500)
            numbers = [at, *([at + rng.randint(0, 400)] if rng.random() < 0.5 else [])]
            line = choose_training(rng) if rng.random() < 0.7 else choose_travel(rng, config, features)
            if "\n" not in line: lines.append(f"with pressing_at_line({', '.join(map(str, numbers))}): {line}" if not line.startswith("if ") else line)
    return lines


def case_of(seed: int, features=FEATURES) -> Case:
    "The case of a seed."
    config = make_config(random.Random(seed // PER_CONFIG), features)
    return Case(config, make_lines(random.Random(f"lines {seed}"), config, features), seed)


# --- runs --------------------------------------------------------------------------------------------------------------

class Reported(Exception):
    "The run said that it cannot go on exactly; nothing is to be compared."


class Session:
    "A run of a case, with what its lines call."
    def __init__(self, config: dict, folder: Path, features=FEATURES):
        self.config, self.folder, self.features = config, folder, features
        self.folders, self.steps_by_hand = 0, set()
        self.learn, self.learners = None, []
        self.learn = self.make_learner()
        self.by_hand = make_data("pairs" if config["data"] == "pairs" else "rows", BY_HAND)

    def names(self) -> dict:
        "What lines can use."
        mine = ("arm", "upto", "reached", "train", "back", "given_up", "one_by_hand", "other_process", "branch_to_the_end", "branch_and_leave",
                "changed_for_a_while", "anew", "draw", "by_hand")
        return {"learn": self.learn, "pressing_at_line": pressing_at_line} | {name: getattr(self, name) for name in mine}

    def make_learner(self, seed: int = 0):
        "A learner of this case."
        # a case that is being reduced may have lost "saves" and kept the settings
        writes = self.config["saves"] or any(name.startswith("save_") or name == "load_best_model_at_end" for name in self.config["args"])
        self.learners.append(make_learner(self.config, self.folder / "out" if writes else None, seed))
        return self.learners[-1]

    def close(self):
        "Close the logs, before the folder is removed."
        for learn in self.learners: learn.history.close_log()

    # acts that the reference makes as well

    def next_act(self, learn):
        "The step of the next change, None if there is none."
        ahead = [step for step, name, value in self.config["acts"] if step >= learn.state.global_step and not self.is_done(learn, step, name, value)]
        return min(ahead, default=None)

    def is_done(self, learn, step, name, value) -> bool:
        "Whether a change has been made."
        if learn.state.global_step != step: return learn.state.global_step > step
        if name == "plan": return learn.run_state.schedule_plan is not None
        if name == "lr":
            group = learn.optimizer.param_groups[0] if learn.optimizer is not None else {}
            return group.get("lr" if step else "initial_lr", group.get("lr")) == value
        return getattr(learn.args, name) == value

    def act(self, learn):
        "Make the changes that are due at the present step, after the tasks of the last one."
        if learn.run_state.finished: return
        for step, name, value in self.config["acts"]:
            if step != learn.state.global_step or self.is_done(learn, step, name, value): continue
            try:
                if learn.run_state.due: learn.debug_step().abort()   # does what is pending
            except InvalidOperation as error:
                if not learn.run_state.finished: raise error
            if learn.run_state.finished: return
            if name == "plan": learn.plan(*value)
            else: learn.set(**{name: value})

    def upto(self, n, learn=None):
        "`n` steps, but not beyond the next change."
        learn = learn or self.learn
        act = self.next_act(learn)
        return n if act is None else max(1, min(n, act - learn.state.global_step))

    def reached(self, n):
        "A condition that holds after `n` steps, or at the next change."
        last = self.learn.state.global_step + self.upto(n)
        return lambda record: record.step >= last

    def train(self, learn):
        "Train to the next change, or to the end."
        if learn.run_state.finished and not learn.run_state.due: return
        act = self.next_act(learn)
        if act is None: learn.train()
        else: learn.run(steps=max(1, act - learn.state.global_step))

    def finish(self, learn):
        "Train to the end."
        while not learn.run_state.finished or learn.run_state.due:
            self.act(learn)
            self.train(learn)

    # what lines do

    def arm(self, place, n, press=0): PLACES.arm(place, n, press_action(press) if press else None)

    def draw(self):
        "Draw as a cell may."
        torch.manual_seed(9), np.random.seed(1), random.seed(2)
        torch.rand(7), np.random.rand(3), random.random()

    def back(self, learn, n):
        "Rewind; what is too far is refused."
        try: learn.rewind(min(n, learn.state.global_step) or 1)
        except ValueError as error:
            if not re.search("cannot go back|past the beginning", str(error)): raise

    def one_by_hand(self, learn):
        "A debug step."
        step = learn.debug_step()
        for _ in range(step.substeps):
            if self.config["learner"] != "attacked": step.forward()
            step.backward()
        step.update()

    def given_up(self, learn):
        "A debug step that is aborted after its forward and backward pass."
        if learn.run_state.finished: return
        with learn.debug_step() as step:
            if self.config["learner"] != "attacked": step.forward()
            step.backward()

    def changed_for_a_while(self, learn, n, **changes):
        "Other settings for some steps, which a restore takes back."
        if learn.run_state.finished: return
        before = learn.snapshot()
        try:
            if "lr" not in changes or learn.optimizer.param_groups[0]["lr"] > 0: learn.set(**changes)   # a rate of 0 cannot be scaled
            learn.step(n)
        finally: learn.restore(before)

    def anew(self, learn):
        "A new run from the first weights, which a learner that goes on from a checkpoint does not have."
        if learn is not self.learners[0]: return
        # a snapshot of the run before has another history
        try: learn.reset()
        finally: learn.snapshots.clear()

    def new_folder(self) -> Path:
        "The name of a folder that is not there yet."
        self.folders += 1
        return self.folder / f"saved-{self.folders}"

    def other_process(self, learn):
        "Write a checkpoint, and go on from it with a learner that has other first weights."
        if learn.optimizer is None or learn.run_state.finished or learn.control.should_training_stop: return learn   # it would go on beyond
        saved = learn.save_checkpoint(self.new_folder())
        new = self.make_learner(seed=1)
        if "begin_on_resume" not in self.features and not learn.state.global_step: return learn
        new.load_checkpoint(saved)
        return new

    def branch_to_the_end(self, learn):
        "A branch without changes ends as the run does."
        if learn.run_state.current.corrupted: return
        branch = learn.branch()
        self.learners.append(branch)
        self.finish(branch)
        if branch.run_state.finished: self.branches = [*getattr(self, "branches", []), state_of(branch, set(self.steps_by_hand))]

    def branch_and_leave(self, learn, n):
        "A branch that trains and is forgotten."
        # lookahead keeps weights by their place in the groups; another weight decay, which changes them, is refused
        branch = learn.branch(**{"max_grad_norm" if self.config["optim"] == "lookahead" else "weight_decay": 0.05})
        self.learners.append(branch)
        if not branch.run_state.finished: branch.step(n)

    # a disturbed run

    def do(self, line: str):
        "Execute a line; errors that were injected, and refusals of a finished run, are part of it."
        learn, names = self.learn, self.names()
        try:
            if learn.run_state.current.corrupted: self.repair()
            self.act(learn)   # both may do pending tasks, which may fail as well
        except (Boom, KeyboardInterrupt): return
        by_hand = any(o in line for o in BY_HAND_LINES)
        if by_hand and learn.run_state.due and "acts_on_pending" not in self.features: return
        if "learn.evaluate()" in line: self.steps_by_hand.add(learn.state.global_step)
        before = cell_generators()
        try: exec(line, names)
        except KeyboardInterrupt: pass
        except InvalidOperation as error:
            if not re.search("finished|nothing to do", str(error)) and not learn.run_state.current.corrupted: raise
        except Exception as error:
            if not is_injected(error): raise
        self.learn = names["learn"]
        if self.learn.run_state.current.debug_step is not None: self.learn.run_state.current.debug_step.abort()   # an interrupt came between two of its learner
        if "draw()" not in line and cell_generators() != before: raise AssertionError("The line changed what the cell draws.")
        self.check()

    def check(self):
        "What holds between two lines."
        if any(p.grad is not None for p in self.learn.model.parameters()): raise AssertionError("A gradient is left.")
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler: raise AssertionError("The interrupt button has another handler.")
        if not torch.is_grad_enabled(): raise AssertionError("Gradients are switched off.")

    def repair(self):
        "Do what the message about a corrupted run asks for."
        try: self.learn.rewind(0)
        except ValueError as error: raise Reported(str(error)) from None


def press_action(times): return lambda: press(times)


def is_injected(error) -> bool:
    "Whether an error is one that the fuzzer has injected, or was caused by one."
    while error is not None:
        if isinstance(error, Boom | KeyboardInterrupt): return True
        error = error.__cause__ or error.__context__
    return False


def cell_generators():
    "What the generators would give to a cell."
    name, keys, *rest = np.random.get_state()
    return torch.get_rng_state().numpy().tobytes(), keys.tobytes(), rest, random.getstate()


# --- one case ----------------------------------------------------------------------------------------------------------

EXPECTED = re.compile("weights had been changed|the branch shares it|restored too when a step fails|weight_norm.* is deprecated|lr_scheduler.step|"
                      "no folder to write it to|Detected call of|epoch parameter in|was not what it is|cannot be captured|"
                      "evaluation mode|This DataLoader|os.fork|multi-threaded|is not there any more|was there before this run|"
                      "keeps its course in a run|the optimizer has its own")


@contextlib.contextmanager
def surroundings():
    "Silence, a folder, one thread, the usual answer to the interrupt button; all warnings are recorded."
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None   # many small files are written
    folder, handler = Path(tempfile.mkdtemp(prefix="fuzz-", dir=memory)), signal.signal(signal.SIGINT, signal.default_int_handler)
    PLACES.clear()
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            yield folder, seen
    finally:
        PLACES.clear()
        torch.set_grad_enabled(True)
        signal.signal(signal.SIGINT, handler)
        shutil.rmtree(folder, ignore_errors=True)


_REFERENCE = {}   # the last one, by its configuration


def reference(config: dict) -> dict:
    "The state at the end of a run that nothing disturbs."
    key = json.dumps(config, sort_keys=True)
    if key not in _REFERENCE:
        _REFERENCE.clear()
        with surroundings() as (folder, seen):
            session = Session(config, folder)
            session.finish(session.learn)
            _REFERENCE[key] = state_of(session.learn)
            session.close()
    return _REFERENCE[key]


class Result(NamedTuple):
    "What came of a case."
    state: str          # "equal", "reported", "failed"
    message: str = ""
    line: int = -1      # of the case, where it failed


def run_case(case: Case, features=FEATURES) -> Result:
    "Run a case and compare it with its reference."
    line = -1
    try:
        want = reference(case.config)
        threads = set(threading.enumerate())
        with surroundings() as (folder, seen):
            session = Session(case.config, folder, features)
            try:
                for line, text in enumerate(case.lines): session.do(text)
                line = len(case.lines)
                PLACES.clear()
                if session.learn.run_state.current.corrupted: session.repair()
                session.finish(session.learn)
                session.check()
            except Reported as error: return Result("reported", str(error), line)
            found = state_of(session.learn, session.steps_by_hand)
            if any("weights had been changed" in str(w.message) for w in seen): return Result("reported", "weights had been changed", line)
            for state in [found, *getattr(session, "branches", [])]:
                if different := differing(state, want, session.steps_by_hand): return Result("failed", "\n".join(different), line)
            session.close()
            strange = {f"{w.category.__name__}: {w.message}" for w in seen if not EXPECTED.search(str(w.message))}
            if strange: return Result("failed", "Unexpected warnings:\n" + "\n".join(sorted(strange)), line)
            del session
        return left_over(threads)
    except Exception as error:
        where = "".join(traceback.format_exception(error)[-6:])
        return Result("failed", f"{type(error).__name__}: {error}\n{where}", line)
    except KeyboardInterrupt as error:   # outside of a line, nobody has pressed the button
        return Result("failed", f"An interrupt came late: {error!r}", line)


def differing(found: dict, want: dict, by_hand=()) -> list:
    "The names of what is not equal, with the values where they are short."
    logs = [row for k, row in found.items() if k.startswith("log ")], [row for k, row in want.items() if k.startswith("log ")]
    extra = [row for row in logs[0] if row not in logs[1]]
    if by_hand:
        steps = {repr(s) for s in by_hand}
        logs = [row for row in logs[0] if row not in extra or row["step"] not in steps or "eval_loss" not in row], without_repeated(logs[1], steps)
    names = [k for k in {**want, **found} if not k.startswith("log ") and found.get(k) != want.get(k)]
    def shown(value): return text if len(text := str(value)) < 200 and "\\x" not in text else f"{text[:40]}..."
    said = [f"{k}: {shown(found.get(k))} instead of {shown(want.get(k))}" for k in names]
    if logs[0] != logs[1]:
        i = next((i for i, (a, b) in enumerate(zip(*logs)) if a != b), min(map(len, logs)))
        said.append(f"log row {i} (of {len(logs[0])}, {len(logs[1])}): {logs[0][i:i + 1]} instead of {logs[1][i:i + 1]}")
    return said


def without_repeated(rows: list, steps: set) -> list:
    "The rows of a log without repeated evaluations at some steps, as `log_rows` leaves them out beside those by hand."
    return [row for i, row in enumerate(rows) if row["step"] not in steps or "eval_loss" not in row or row not in rows[i + 1:]]


def left_over(threads) -> Result:
    "Whether threads or processes have outlived a case."
    end = time.monotonic() + 5
    while time.monotonic() < end:
        processes = multiprocessing.active_children()
        more = [t for t in threading.enumerate() if t not in threads and t.name != "tqdm_monitor"]   # that one stays
        if not processes and not more: return Result("equal")
        gc.collect()
        time.sleep(0.01)
    frames = sys._current_frames()
    stacks = ["".join(traceback.format_stack(frames[t.ident])) for t in more if t.ident in frames]
    return Result("failed", "\n".join(["Left over:", *map(repr, processes), *map(repr, more), *stacks]))


# --- failures ----------------------------------------------------------------------------------------------------------

def fails(case: Case, features, kind: str) -> bool:
    "Whether a case fails in the same way: by a difference, or by an error."
    result = run_case(case, features)
    return result.state == "failed" and kind_of(result) == kind


def kind_of(result: Result) -> str:
    "The way in which a case has failed: its error, or the fact that something differs."
    first = result.message.split("\n")[0]
    return "difference" if " instead of " in first else re.sub(r"\d+", "0", first)[:60]


def simpler(config: dict):
    "Configurations that are simpler in one part."
    for key, value in PLAIN.items():
        if key != "args" and config[key] != value: yield config | {key: value}
    for name in config["callbacks"]: yield config | {"callbacks": [c for c in config["callbacks"] if c != name]}
    for name in config["args"]:
        if name not in PLAIN["args"] and not (name == "max_steps" and config["data"] == "stream"):
            yield config | {"args": {k: v for k, v in config["args"].items() if k != name}}


def reduce(case: Case, features, seconds: float = 60) -> Case:
    "The shortest case that still fails in the same way."
    kind, end, again = kind_of(run_case(case, features)), time.monotonic() + seconds, True
    while again and time.monotonic() < end:
        again = False
        for i in reversed(range(len(case.lines))):
            shorter = case._replace(lines=case.lines[:i] + case.lines[i + 1:])
            if time.monotonic() < end and fails(shorter, features, kind): case, again = shorter, True
        for config in simpler(case.config):
            plain = case._replace(config=config)
            if time.monotonic() < end and fails(plain, features, kind):
                case, again = plain, True
                break
    return case


def described(case: Case, result: Result) -> str:
    "A failure as a person can replay it."
    config = {k: v for k, v in case.config.items() if v != PLAIN[k]}
    lines = "\n".join(f"    {line!r}," for line in case.lines)
    return f"seed {case.seed}: {result.state} at line {result.line}\n{result.message}\nreplay(Case(PLAIN | {config!r}, [\n{lines}\n]))"


def replay(case: Case, features=FEATURES) -> Result:
    "Run a case and print what comes of it."
    result = run_case(case, features)
    print(described(case, result))
    return result


# --- command line ------------------------------------------------------------------------------------------------------

def done_before(path) -> tuple:
    "Seeds that a file of results has, and those that were begun and never ended."
    begun, ended = set(), set()
    for text in Path(path).read_text().splitlines() if path and Path(path).exists() else ():
        row = json.loads(text)
        (begun if row["state"] == "begun" else ended).add(row["seed"])
    return ended, begun - ended


def fuzz(seeds, features=FEATURES, path=None, minutes=float("inf"), seconds=60) -> dict:  # seconds: for the reduction of a failure
    "Run the cases of seeds, print failures, append a line for each case to a file; how many came to which result."
    ended, hung = done_before(path)
    counts, end = {"equal": 0, "reported": 0, "failed": len(hung)}, time.monotonic() + 60 * minutes
    for seed in sorted(hung): print(f"seed {seed}: it was begun and never ended")
    out = open(path, "a") if path else None
    def write(**row):
        if out is not None: print(json.dumps(row), file=out, flush=True)
    for seed in seeds:
        if seed in ended or seed in hung: continue
        if time.monotonic() > end: break
        write(seed=seed, state="begun")
        faulthandler.dump_traceback_later(RUNS_OUT, exit=True)
        started, case = time.monotonic(), case_of(seed, features)
        result = run_case(case, features)
        faulthandler.cancel_dump_traceback_later()
        took = round(time.monotonic() - started, 3)
        counts[result.state] += 1
        row = dict(seed=seed, state=result.state, seconds=took)
        if result.state == "failed":
            shorter = reduce(case, features, seconds)
            again = run_case(shorter, features)
            if again.state == "failed": case, result = shorter, again
            else: print("A repetition did not fail:")
            print(described(case, result), flush=True)
            row |= dict(message=result.message, config=case.config, lines=case.lines, fails_again=again.state == "failed")
        write(**row)
    return counts


def main():
    "The command line."
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--resume", help="a file of results; seeds that it has are left out")
    parser.add_argument("--reduce", type=float, default=60, help="seconds that the reduction of a failure may take")
    parser.add_argument("--only", type=int, help="run this seed alone, and print its lines")
    parser.add_argument("--without", nargs="*", default=[], choices=sorted(FEATURES), help="features to leave out")
    given = parser.parse_args()
    torch.set_num_threads(1)
    features = FEATURES - set(given.without)
    if given.only is not None: sys.exit(replay(case_of(given.only, features), features).state == "failed")
    started = time.monotonic()
    counts = fuzz(range(given.seed, given.seed + given.runs), features, given.resume, given.minutes, given.reduce)
    print(f"{counts} in {time.monotonic() - started:.0f} s")
    sys.exit(counts["failed"] > 0)


if __name__ == "__main__": main()
