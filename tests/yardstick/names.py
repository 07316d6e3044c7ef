"""Write the public names of the package that is imported, with their signatures: {name: signature or kind}."""
import dataclasses, inspect, json, sys
from pathlib import Path

import trainer_nb
from trainer_nb import TrainingArguments


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
    found = {}
    names = {name: getattr(trainer_nb, name) for name in sorted(trainer_nb.__all__)}
    for part, module in [*filter(lambda item: inspect.ismodule(item[1]), names.items())]:
        names |= {f"{part}.{n}": o for n, o in vars(module).items() if not n.startswith("_") and getattr(o, "__module__", None) == module.__name__}
    for name, thing in names.items():
        what = describe(thing)
        found[f"trainer_nb.{name}"] = what.get("signature") or what["kind"]
        found |= {f"trainer_nb.{name}.{member}": signature or "value" for member, signature in what.get("members", {}).items()}
    return found | {f"field {f.name}": repr(f.default) if f.default is not dataclasses.MISSING else "..." for f in dataclasses.fields(TrainingArguments)}


if __name__ == "__main__": Path(sys.argv[1]).write_text(json.dumps(interface()))
