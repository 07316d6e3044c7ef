"""Write the public names of the package that is imported, with their signatures: {name: signature or kind}."""
import importlib, json, sys
from pathlib import Path

import trainer_nb

sys.path.insert(0, str(Path(__file__).resolve().parents[1]/"project"))
from test_public_names import describe, interface

# modules that the documentation names
MODULES = ("metrics", "generate", "parsing")


def flat():
    stored = interface()
    names = {f"trainer_nb.{name}": what for name, what in stored["names"].items()}
    for part in MODULES:
        try: module = importlib.import_module(f"trainer_nb.{part}")
        except ImportError: continue
        own = [n for n, o in vars(module).items() if not n.startswith("_") and getattr(o, "__module__", None) == module.__name__]
        names |= {f"trainer_nb.{part}.{name}": describe(getattr(module, name)) for name in own}
    found = {f"field {name}": default for name, default in stored["fields of TrainingArguments"].items()}
    for name, what in names.items():
        found[name] = what.get("signature") or what["kind"]
        found |= {f"{name}.{member}": signature or "value" for member, signature in what.get("members", {}).items()}
    return found


if __name__ == "__main__": Path(sys.argv[1]).write_text(json.dumps(flat()))
