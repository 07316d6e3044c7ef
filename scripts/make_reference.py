#!/usr/bin/env python3
"""Make nbs/reference.ipynb, the tables of all public names, from the docstrings of the package, and trainer_nb/args/keywords.pyi,
the types of the settings, for editors.

    python scripts/make_reference.py            # write both
    python scripts/make_reference.py --check    # exit with 1 where one of them is not what the package gives"""
import argparse, dataclasses, hashlib, inspect, json, re, sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT/"nbs"/"reference.ipynb"
STUB = ROOT/"trainer_nb"/"args"/"keywords.pyi"
# the repository's package, also where another one is installed
sys.path.insert(0, str(ROOT))
from drop_lists import drop_lists

INTRO = """# Reference

> All public names: what each does, and the notebook that explains it

The tables have the first sentence of each docstring. In a notebook, `learn.rewind?` shows the rest and the parameters of a verb; in the terminal, `help(trainer_nb.Learner.rewind)` does. Names that are not listed here may change at any time ([versions](https://github.com/trainer-nb/trainer_nb/blob/main/CONTRIBUTING.md#versions)). The features of Hugging Face's `Trainer`, one by one, are in [their own table](trainer.ipynb), the terms of the project in the [glossary](glossary.ipynb)."""
NAMES = """## Names of `trainer_nb`

What `from trainer_nb import ...` gives; `trainer_nb.__all__` has the same names."""
LATE = """### From the Trainer's modules

Names that scripts import from transformers' modules for training. They are imported at the first use; those of transformers need it installed."""
LEARNER = """## `Learner`

The methods and properties of a learner, by what they are for. Attributes without a line of their own (`model`, `optimizer`, `lr_scheduler`, `state`, `args`, `train_dataset`, ...) are those of Hugging Face's `Trainer`."""
ARGUMENTS = """## `TrainingArguments`

The settings of a run, with their defaults. `Learner(model, learning_rate=1e-3)` takes each of them as a keyword argument too. {count} arguments; those of the Trainer have its names and defaults."""
# The parts of the learner that callers use, and the methods that subclasses override: class, heading.
PARTS = {"TrainingMixin": "Train", "LiveMixin": "Watch live and in the background", "ChangeMixin": "Change, go back, branch",
         "LaunchMixin": "Several processes", "EvaluationMixin": "Evaluate and predict", "DiagnosticsMixin": "Look inside",
         "TuningMixin": "Tune", "RecordingMixin": "Record and save", "Learner": "The run and its parts",
         "TrainerBase": "To override in a subclass", "TrainerCompatMixin": "For scripts of the Trainer"}


def notebooks():
    "Return the notebook of each module, relative to nbs/."
    found = {}
    for path in sorted((ROOT/"nbs").rglob("*.ipynb")):
        if ".ipynb_checkpoints" in path.parts: continue
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if m := re.match(r"#\s*\|\s*default_exp\s+(\S+)", "".join(cell["source"])): found[f"trainer_nb.{m[1]}"] = path.relative_to(ROOT/"nbs")
    return found


def plain(text):
    "Return text for one cell of a Markdown table."
    return re.sub(r"\s+", " ", text).replace("|", "\\|").replace("<", "&lt;").strip()


def first(o):
    "Return the first sentence of a docstring, without the hint where the whole one is: what it raises stands in the notebook."
    text = re.sub(r"; see `trainer_nb\.[\w.]+`", "", (inspect.getdoc(o) or "").split("\n\n")[0])
    return plain(re.split(r"(?<=[\w)`])\.\s(?=[A-Z`])", text)[0].rstrip(".") + "." if text else "")


def table(heads, rows):
    "Return rows as a table in Markdown."
    return "\n".join(f"| {' | '.join(o)} |" for o in (heads, ["---"] * len(heads), *rows))


class Reference:
    "The cells of the page."
    def __init__(self):
        import trainer_nb
        self.package, self.where = trainer_nb, notebooks()

    def link(self, module):
        "Return a link to the notebook of a module."
        path = self.where.get(module)
        return f"[{module.partition('.')[2]}]({path})" if path else module.partition(".")[0]

    def row(self, name):
        "Return the row of a name of the package."
        o = getattr(self.package, name)
        if inspect.ismodule(o): return f"`{name}`", first(o), self.link(o.__name__)
        # a function of the package that imports the one which it names when it is called
        elsewhere = re.search(r"see `(trainer_nb\.[\w.]+)`", inspect.getdoc(o) or "")
        module = o.__module__
        if elsewhere: module = elsewhere[1] if elsewhere[1] in self.where else elsewhere[1].rpartition(".")[0]
        text = first(o) if o.__name__ == name else f"Another name of `{o.__name__}`."
        return f"`{name}`", text, self.link(module)

    def late(self):
        "Return the rows of the names that are imported at their first use."
        by_module = {}
        for name, module in self.package._LATE_NAMES.items(): by_module.setdefault(module, []).append(name)
        return [(" ".join(f"`{o}`" for o in sorted(names)), self.link(module) if module in self.where else f"`{module}`")
                for module, names in by_module.items()]

    def members(self, cls):
        "Return the rows of a class's own methods and properties: those with a docstring."
        for name, o in sorted(vars(cls).items()):
            o = o.__func__ if isinstance(o, (staticmethod, classmethod)) else o
            if name.startswith("_") or not (inspect.isfunction(o) or isinstance(o, property)) or not first(o): continue
            call = f"`{name}`" if isinstance(o, property) else f"`{name}()`"
            yield call, first(o)

    def arguments(self):
        "Return the rows of the settings."
        for f in dataclasses.fields(self.package.TrainingArguments):
            default = "" if f.default is dataclasses.MISSING else f"`{plain(repr(getattr(f.default, 'value', f.default)))}`"
            yield f"`{f.name}`", default, plain(f.metadata.get("help") or "")

    def texts(self):
        "Return the Markdown of each cell."
        yield INTRO
        yield NAMES
        yield table(("name", "meaning", "notebook"), map(self.row, self.package.__all__))
        yield LATE
        yield table(("names", "module"), self.late())
        yield LEARNER
        classes = {cls.__name__: cls for cls in self.package.Learner.__mro__ if cls is not object}
        if missing := set(classes) - set(PARTS): sys.exit(f"PARTS in {Path(__file__).name} has no heading for {sorted(missing)}.")
        for name, heading in PARTS.items():
            if rows := list(self.members(classes[name])): yield f"### {heading}\n\n" + table(("name", "meaning"), rows)
        rows = list(self.arguments())
        yield ARGUMENTS.format(count=len(rows))
        yield table(("argument", "default", "meaning"), rows)

    def notebook(self):
        "Return the page as nbdev_clean writes it."
        cells = [{"cell_type": "markdown", "id": hashlib.sha256(f"{i} {text.split(chr(10))[0]}".encode()).hexdigest()[:8],
                  "metadata": {}, "source": text.splitlines(keepends=True)} for i, text in enumerate(self.texts())]
        kernel = {"kernelspec": {"display_name": "python3", "language": "python", "name": "python3"}}
        page = {"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}
        return json.dumps(page, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def keywords():
    "Return the settings as a typed dictionary, which type checkers read."
    from trainer_nb.args.fields import field_types
    from trainer_nb.args.training_args import TrainingArguments
    from trainer_nb.args.validation import describe_type
    types = {name: describe_type(kind) for name, kind in field_types(TrainingArguments).items()}
    enums = sorted({word for kind in types.values() for word in re.findall(r"\b[A-Z]\w+", kind) if word not in ("None", "Any")})
    heads = ["# written by scripts/make_reference.py", "from typing import TypedDict", "", f"from trainer_nb.args.fields import {', '.join(enums)}", ""]
    heads += ["class TrainingArgumentsKwargs(TypedDict, total=False):", '    "List the fields of `TrainingArguments` as keywords."']
    return "\n".join([*heads, *(f"    {name}: {kind}" for name, kind in types.items())]) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 where the page would change")
    args = parser.parse_args()
    # the export of the modules ends here
    if not args.check: drop_lists()
    for file, text in ((PAGE, Reference().notebook()), (STUB, keywords())):
        if file.exists() and file.read_text(encoding="utf-8") == text: continue
        if args.check: sys.exit(f"{file.relative_to(ROOT)} is not what the package gives; run `make export`")
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__": main()
