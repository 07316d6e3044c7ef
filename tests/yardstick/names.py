"""Write the public names of the package that is imported, with their signatures: {name: signature or kind}."""
import json, sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]/"golden"))
from write import interface


def flat():
    found = {}
    for module, names in interface().items():
        if module == "fields of TrainingArguments": found |= {f"field {name}": default for name, default in names.items()}
        else:
            for name, what in names.items():
                found[f"{module}.{name}"] = what.get("signature") or what["kind"]
                found |= {f"{module}.{name}.{member}": signature or "value" for member, signature in what.get("members", {}).items()}
    return found


if __name__ == "__main__": Path(sys.argv[1]).write_text(json.dumps(flat()))
