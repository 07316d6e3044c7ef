"""The signatures of the site: nbdev's, also where an annotation names a class that is imported for type checkers only.

nbdev evaluates annotations, and raises NameError for such a class. settings.ini names this renderer; `PYTHONPATH=scripts nbdev_docs`
finds it."""
import inspect

import fastcore.docments
from nbdev.showdoc import BasicMarkdownRenderer


def readable_signature(o, *, eval_str=False, **kwargs):
    "Return a signature with evaluated annotations, or with their text where they cannot be evaluated."
    try: return inspect.signature(o, eval_str=eval_str, **kwargs)
    except NameError: return inspect.signature(o, eval_str=False, **kwargs)


class SiteRenderer(BasicMarkdownRenderer):
    def __init__(self, *args, **kwargs):
        fastcore.docments.signature = readable_signature
        super().__init__(*args, **kwargs)
