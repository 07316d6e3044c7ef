"""Code that uses the public interface goes on running: no public name, parameter or default is lost without a decision.

public_names.json is the interface of the last version; `python tests/project/test_public_names.py` writes it again.
"""
import ast
import dataclasses
import inspect
import json
from pathlib import Path

import pytest

import trainer_nb
from trainer_nb import TrainingArguments

FILE = Path(__file__).with_name("public_names.json")


def signature_of(thing):
    "A signature as text that Python can parse, without annotations; None for what has none."
    try: found = inspect.signature(thing)
    except (TypeError, ValueError): return None
    def shown(p):
        plain = isinstance(p.default, (bool, int, float, str, tuple, type(None)))
        return p.replace(annotation=p.empty, default=p.default if plain or p.default is p.empty else ...)
    text = str(found.replace(parameters=[shown(p) for p in found.parameters.values()], return_annotation=inspect.Signature.empty))
    return text.replace("=Ellipsis", "=...")


def members_of(cls):
    "The public methods and attributes of a class, without those of the types that Python brings."
    found = {}
    for name in sorted(dir(cls)):
        if name.startswith("_") or any(name in vars(o) for o in (object, dict, list, tuple, BaseException, KeyboardInterrupt)): continue
        thing = inspect.getattr_static(cls, name)
        thing = getattr(thing, "__func__", thing)
        found[name] = signature_of(thing) if callable(thing) else None
    return found


def describe(thing):
    "What the interface of a public name is."
    if inspect.isclass(thing):
        return {"kind": "class", "signature": signature_of(thing), "members": members_of(thing)}
    if inspect.ismodule(thing): return {"kind": "module"}
    return {"kind": "function" if callable(thing) else "value", "signature": signature_of(thing) if callable(thing) else None}


def interface():
    "Everything that code written for this version may use."
    names = {name: describe(getattr(trainer_nb, name)) for name in sorted(trainer_nb.__all__)}
    fields = {f.name: repr(f.default) if f.default is not dataclasses.MISSING else "..." for f in dataclasses.fields(TrainingArguments)}
    return {"names": names, "fields of TrainingArguments": fields}


def parse(signature):
    "A signature's parameters: {name: (kind, default)}, in order."
    args = ast.parse(f"def f{signature}: pass").body[0].args
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + [ast.unparse(d) for d in args.defaults]
    found = {a.arg: ("positional", d) for a, d in zip(positional, defaults)}
    if args.vararg: found["*"] = ("many", None)
    found |= {a.arg: ("keyword", None if d is None else ast.unparse(d)) for a, d in zip(args.kwonlyargs, args.kw_defaults)}
    if args.kwarg: found["**"] = ("many", None)
    return found


def lost_parameters(name, then, now):
    "What calls that were right then are not right now."
    if then is None or now is None: return [] if then is None else [f"{name} cannot be called any more"]
    old, new = parse(then), parse(now)
    lost = [f"{name} has no {p!r} any more" for p in old if p not in new]
    for p, (kind, default) in old.items():
        if p not in new: continue
        if kind == "positional" and new[p][0] != "positional": lost.append(f"{name}: {p!r} cannot be given by position any more")
        if kind == "keyword" and new[p][0] == "many": lost.append(f"{name}: {p!r} is none of its own any more")
        if default != new[p][1] and "..." not in (default, new[p][1]): lost.append(f"{name}: {p}={default} is now {new[p][1]}")
    # Those that were positional stay in their places; new ones come behind them and have a default.
    places = [p for p, (kind, _) in old.items() if kind == "positional"]
    if [p for p, (kind, _) in new.items() if kind == "positional"][:len(places)] != places:
        lost.append(f"{name}: its positional parameters are others")
    needed = [p for p, (kind, default) in new.items() if p not in old and kind != "many" and default is None]
    return lost + [f"{name} cannot be called without {p!r}" for p in needed]


def check_name(name, then):
    "What a name has lost."
    if not hasattr(trainer_nb, name): return [f"{name} is not there any more"]
    now = describe(getattr(trainer_nb, name))
    if now["kind"] != then["kind"]: return [f"{name} is a {now['kind']} and was a {then['kind']}"]
    if then["kind"] == "module": return []
    lost = lost_parameters(name, then["signature"], now["signature"])
    for member, signature in then.get("members", {}).items():
        if member not in now["members"]: lost.append(f"{name}.{member} is not there any more")
        elif signature is not None: lost += lost_parameters(f"{name}.{member}", signature, now["members"][member])
    return lost


STORED = json.loads(FILE.read_text("utf-8"))


@pytest.mark.parametrize("name", STORED["names"])
def test_no_name_is_lost(name):
    "Every public name is there with every parameter, method and default; there may be more."
    assert check_name(name, STORED["names"][name]) == []


def test_no_setting_is_lost():
    "Every field of TrainingArguments is there, with its default."
    then, now = STORED["fields of TrainingArguments"], interface()["fields of TrainingArguments"]
    assert {name: default for name, default in then.items() if now.get(name) != default} == {}


def test_the_comparison_sees_what_is_lost():
    "The check above can fail."
    assert lost_parameters("f", "(self, n=1, *, name=None, **more)", "(self, n=1, *, name=None, other=2, **more)") == []
    assert lost_parameters("f", "(self, n=1)", "(self, n=1, extra=None)") == []
    for now in ("(self)", "(self, m=1)", "(self, n=2)", "(self, *, n=1)", "(self, first, n=1)", "(self, n=1, *, needed)", "(self, extra=None, n=1)"):
        assert lost_parameters("f", "(self, n=1)", now), now
    assert check_name("no_such_name", {"kind": "function", "signature": "()"})


if __name__ == "__main__": FILE.write_text(json.dumps(interface(), indent=1) + "\n", encoding="utf-8")
