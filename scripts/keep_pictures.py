"""Takes the live figures out of the notebooks' stored outputs, where a picture of the same stands beside them: what is kept is small and static."""
from pathlib import Path

import nbformat

LIVE = "application/vnd.plotly.v1+json"


def main():
    for path in sorted(Path(__file__).parents[1].glob("nbs/**/*.ipynb")):
        notebook, found = nbformat.read(path, as_version=4), False
        for output in (o for cell in notebook.cells for o in cell.get("outputs", ())):
            if "image/svg+xml" in output.get("data", {}): found |= output["data"].pop(LIVE, None) is not None
        if found: nbformat.write(notebook, path)


if __name__ == "__main__": main()
