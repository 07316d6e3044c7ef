"What several tests share: held, seal, set_aside, write."
from trainer_nb.state.checkpoint_dirs import seal, set_aside, written_whole


def write(place, text, run="a1b2"):
    "A sealed folder in its place, as a checkpoint is written."
    def make_room(taken): return set_aside(taken, run)
    with written_whole(place, run, make_room) as folder:
        (folder / "text").write_text(text)
        seal(folder, {"run": run, "text": text, "written": 1.0, "place": [0, 0, 0]})
