"What several tests share: held, seal, set_aside, write."
from trainer_nb.state.checkpoint_dirs import write_manifest, move_aside, atomic_directory


def write(place, text, run="a1b2"):
    "A sealed folder in its place, as a checkpoint is written."
    def make_room(taken): return move_aside(taken, run)
    with atomic_directory(place, run, make_room) as folder:
        (folder / "text").write_text(text)
        write_manifest(folder, {"run": run, "text": text, "written": 1.0, "place": [0, 0, 0]})
