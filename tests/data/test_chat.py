"Conversations: tokens, labels, rows and losses are those of TRL; samples of a row do not see each other; loading, going back and resuming change nothing."
import json, runpy, warnings
from pathlib import Path

import pytest
import torch
from datasets import Dataset

from trainer_nb import DataCollatorForChat, DataCollatorForPreference, Learner, TrainingArguments, pack_dataset, tokenize_chat
from trainer_nb.data.chat import assistant_mask, is_trained, packed_pieces, show_trained_tokens

NAMES = "<pad> <end> <unk> <user> <assistant> <system> what is the capital of France Italy Spain Paris Rome Madrid and ? . in you are short it big".split()
MARKED = ("{% for m in messages %}<{{ m.role }}> {% if m.role == 'assistant' %}{% generation %}{{ m.content }} <end>{% endgeneration %} "
          "{% else %}{{ m.content }} <end> {% endif %}{% endfor %}{% if add_generation_prompt %}<assistant> {% endif %}")
PLAIN = MARKED.replace("{% generation %}", "").replace("{% endgeneration %}", "")
ONLY_CONTENT = MARKED.replace(" <end>{% endgeneration %}", "{% endgeneration %} <end>")


@pytest.fixture(scope="module")
def trl(): return pytest.importorskip("trl")


def make_tokenizer(template=MARKED):
    tokenizers, transformers = pytest.importorskip("tokenizers"), pytest.importorskip("transformers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({n: i for i, n in enumerate(NAMES)}, unk_token="<unk>"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<end>", unk_token="<unk>")
    made.chat_template = template
    return made


def make_model(kind="llama", attention="sdpa"):
    t = pytest.importorskip("transformers")
    torch.manual_seed(0)
    if kind == "gpt2":
        return t.GPT2LMHeadModel(t.GPT2Config(vocab_size=len(NAMES), n_embd=16, n_layer=2, n_head=2, n_positions=128, resid_pdrop=0.0,
                                              embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation=attention))
    return t.LlamaForCausalLM(t.LlamaConfig(vocab_size=len(NAMES), hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
                                            num_key_value_heads=2, max_position_embeddings=128, attn_implementation=attention))


def user(text): return {"role": "user", "content": text}
def assistant(text): return {"role": "assistant", "content": text}


def chats(n=24) -> list:
    "Conversations of one to three turns."
    facts = [("France", "Paris"), ("Italy", "Rome"), ("Spain", "Madrid")]
    turns = [[user(f"what is the capital of {c} ?"), assistant(f"{a} ." if i else f"it is {a} .")] for i, (c, a) in enumerate(facts)]
    return [{"messages": [m for k in range(1 + i % 3) for m in turns[(i * i + k) % 3]]} for i in range(n)]


DATA = {
    "messages": lambda: chats(),
    "prompt and completion, conversational": lambda: [{"prompt": c["messages"][:-1], "completion": c["messages"][-1:]} for c in chats()],
    "prompt and completion": lambda: [{"prompt": c["messages"][0]["content"] + " ", "completion": c["messages"][1]["content"]} for c in chats()],
    "text": lambda: [{"text": " ".join(m["content"] for m in c["messages"])} for c in chats()],
    "conversations": lambda: [{"conversations": [{"from": m["role"], "value": m["content"]} for m in c["messages"]]} for c in chats()],
}


def sft(trl, samples, tmp_path, model=None, tokenizer=None, **given):
    "TRL's trainer for samples."
    given = dict(max_length=None, gradient_checkpointing=False, bf16=False, report_to="none", use_cpu=True, disable_tqdm=True, seed=3, logging_steps=1,
                 per_device_train_batch_size=4, max_steps=5, learning_rate=1e-2, save_strategy="no", lr_scheduler_type="constant") | given
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trl.SFTTrainer(model or make_model(), trl.SFTConfig(str(tmp_path), **given), train_dataset=Dataset.from_list(samples),
                              processing_class=tokenizer or make_tokenizer())


def rows_of(dataset) -> list: return [{k: list(row[k]) for k in ("input_ids", "labels")} for row in dataset]


def same_batches(ours: dict, theirs: dict, names=("input_ids", "labels")):
    for name in names:
        assert ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name]), name


# ---- the same tokens and labels as TRL

@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("given", [
    {}, {"assistant_only_loss": True}, {"completion_only_loss": False}, {"completion_only_loss": True},
    {"max_length": 12}, {"max_length": 12, "truncation_mode": "keep_end"}, {"assistant_only_loss": True, "max_length": 12}], ids=str)
def test_tokens_and_labels_are_those_of_trl(trl, tmp_path, kind, given):
    samples = DATA[kind]()
    if given.get("assistant_only_loss") and kind in ("prompt and completion", "text"):
        with pytest.raises(ValueError, match="needs conversations"):
            DataCollatorForChat(make_tokenizer(), **given)(samples)
        return
    # TRL looks for the keys of messages before it renames these
    renamed = given.get("assistant_only_loss") and kind == "conversations"
    theirs = sft(trl, DATA["messages"]() if renamed else samples, tmp_path, **given)
    collate = DataCollatorForChat(make_tokenizer(), **given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours = tokenize_chat(samples, collate)
    assert ours and ours == rows_of(theirs.train_dataset)
    four = ours[:4]
    same_batches(collate(four), theirs.data_collator(four), ("input_ids", "labels", "attention_mask"))
    if "max_length" not in given: same_batches(collate(samples[:4]), theirs.data_collator(four))


@pytest.mark.parametrize("length", [8, 25])
def test_packed_rows_are_those_of_trl(trl, tmp_path, length):
    collate = DataCollatorForChat(make_tokenizer(), assistant_only_loss=True, return_flash_attn_kwargs=True, return_seq_idx=True)
    theirs = sft(trl, chats(), tmp_path, assistant_only_loss=True, packing=True, max_length=length, padding_free=False)
    tokens = tokenize_chat(chats(), collate)
    ours = pack_dataset(tokens, length)
    assert rows_of(ours) == rows_of(theirs.train_dataset)
    assert list(pack_dataset(Dataset.from_list(tokens), length)) == ours
    assert all(sum(row["seq_lengths"]) == len(row["input_ids"]) <= length for row in ours)
    assert [row["seq_lengths"] for row in ours] == list(theirs.train_dataset["seq_lengths"])
    names = "input_ids", "labels", "position_ids", "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx"
    same_batches(collate(ours[:3]), theirs.data_collator(list(theirs.train_dataset)[:3]), names)


def test_rows_of_random_lengths_are_those_of_trl(trl):
    "More samples than are packed together, with equal lengths, empty ones and those that fill rows."
    sizes = torch.randint(0, 12, (1300,), generator=torch.Generator().manual_seed(1)).tolist()
    table = Dataset.from_dict({"input_ids": [[i] * n for i, n in enumerate(sizes)], "labels": [[-i] * n for i, n in enumerate(sizes)]})
    theirs = trl.pack_dataset(table, 10)
    assert rows_of(pack_dataset(table, 10)) == rows_of(theirs) == rows_of(pack_dataset(list(table), 10))


def test_padding_to_a_multiple_is_that_of_trl(trl, tmp_path):
    tokens = tokenize_chat(chats(4), DataCollatorForChat(make_tokenizer()))
    for flat in (False, True):
        theirs = sft(trl, chats(4), tmp_path, pad_to_multiple_of=16, padding_free=flat).data_collator(tokens)
        ours = DataCollatorForChat(make_tokenizer(), pad_to_multiple_of=16, padding_free=flat)(tokens)
        same_batches(ours, theirs, [*ours])


# ---- the same losses

@pytest.mark.parametrize("kind, given", [
    ("llama", {"assistant_only_loss": True}), ("gpt2", {}), ("llama", {"assistant_only_loss": True, "gradient_accumulation_steps": 2}),
    ("llama", {"packing": True, "max_length": 32}), ("gpt2", {"packing": True, "max_length": 48}), ("llama", {"padding_free": True})], ids=str)
def test_losses_are_those_of_trl(trl, tmp_path, kind, given):
    theirs = sft(trl, chats(), tmp_path, make_model(kind), **given)
    theirs.train()
    expected = [row["loss"] for row in theirs.state.log_history if "loss" in row]
    packing, length = given.get("packing"), given.get("max_length")
    collate = DataCollatorForChat(make_tokenizer(), assistant_only_loss=given.get("assistant_only_loss", False), padding_free=given.get("padding_free"))
    data = pack_dataset(tokenize_chat(chats(), collate), length) if packing else chats()
    args = TrainingArguments(per_device_train_batch_size=4, max_steps=5, learning_rate=1e-2, lr_scheduler_type="constant", seed=3, logging_steps=1, use_cpu=True,
                             disable_tqdm=True, gradient_accumulation_steps=given.get("gradient_accumulation_steps", 1))
    learn = Learner(make_model(kind), args, train_dataset=data, data_collator=collate)
    learn.train()
    found = [row["loss"] for row in learn.state.log_history if "loss" in row]
    assert len(found) == 5 and found == pytest.approx(expected, rel=1e-6)
    for a, b in zip(learn.model.parameters(), theirs.model.parameters()): torch.testing.assert_close(a, b, rtol=1e-4, atol=5e-5)


def test_a_run_of_trl_is_continued_and_its_trainer_uses_the_collator(trl, tmp_path):
    "Losses of TRL alone, of TRL up to a checkpoint and this trainer after it, and of TRL with this collator are the same."
    whole = sft(trl, chats(), tmp_path/"a", assistant_only_loss=True, save_strategy="steps", save_steps=3, logging_steps=1)
    whole.train()
    def losses(trainer): return [row["loss"] for row in trainer.state.log_history if "loss" in row]
    collate = DataCollatorForChat(make_tokenizer(), assistant_only_loss=True)
    args = TrainingArguments(per_device_train_batch_size=4, max_steps=5, learning_rate=1e-2, lr_scheduler_type="constant", seed=3, logging_steps=1,
                             use_cpu=True, disable_tqdm=True)
    learn = Learner(make_model(), args, train_dataset=chats(), data_collator=collate)
    learn.train(resume_from_checkpoint=str(tmp_path/"a"/"checkpoint-3"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = trl.SFTConfig(str(tmp_path/"b"), max_length=None, gradient_checkpointing=False, bf16=False, report_to="none", use_cpu=True, disable_tqdm=True,
                               seed=3, logging_steps=1, per_device_train_batch_size=4, max_steps=5, learning_rate=1e-2, save_strategy="no",
                               lr_scheduler_type="constant", dataset_kwargs={"skip_prepare_dataset": True}, remove_unused_columns=False)
        theirs = trl.SFTTrainer(make_model(), config, train_dataset=Dataset.from_list(tokenize_chat(chats(), collate)), processing_class=make_tokenizer(),
                                data_collator=collate)
    theirs.train()
    assert len(losses(whole)) == 5
    assert losses(learn) == pytest.approx(losses(whole), rel=1e-5) and losses(theirs) == pytest.approx(losses(whole), rel=1e-5)


def byte_tokenizer(template: str, end: str):
    "A tokenizer with one token for each byte; the marks of the template are texts."
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast
    made = Tokenizer(models.BPE({byte: i for i, byte in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens([end, "<bos>"])
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token=end, pad_token=end, bos_token="<bos>", chat_template=template)


TWO_TURNS = [{"role": "system", "content": "Be brief."}, user("France?"), assistant("Paris."), user("Italy?"), assistant("Rome.")]
CALL = {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "time", "arguments": {"zone": "CET"}}}]}
FUNCTIONS = [{"type": "function", "function": {"name": "time", "description": "the time", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}}]


@pytest.mark.parametrize("name, end, calls", [
    ("qwen2_5", "<|im_end|>", "<tool_call>"), ("qwen3_instruct_2507", "<|im_end|>", "<tool_call>"), ("qwen3_training", "<|im_end|>", "<tool_call>"),
    ("qwen3", "<|im_end|>", None), ("llama3_2", "<|eot_id|>", '"time"'), ("llama3", "<|eot_id|>", ""), ("gemma3", "<end_of_turn>", None)])
def test_templates_of_pretrained_models(trl, name, end, calls):
    "What the table of the page on chats says, with TRL's copies of the templates: the trained parts of two turns, and of a call of a tool."
    template = Path(trl.__file__).with_name("chat_templates")/f"{name}.jinja"
    if not template.exists(): pytest.skip("TRL has no such template")
    tokenizer = byte_tokenizer(template.read_text(), end)
    collate = DataCollatorForChat(tokenizer, assistant_only_loss=True)
    def trained(**sample):
        batch = collate([sample])
        return tokenizer.decode(batch["labels"][batch["labels"] != -100])
    if name == "qwen3":
        with pytest.raises(ValueError, match="rendered differently in the whole"): trained(messages=TWO_TURNS)
        assert trained(messages=[user("2 + 2?"), assistant("<think>\neasy\n</think>\n\n4")]).startswith("<think>")
    else:
        said = trained(messages=TWO_TURNS)
        assert "Paris." in said and "Rome." in said and said.count(end) == 2 and "France" not in said and "brief" not in said
    called = {"messages": [user("Time?"), CALL, {"role": "tool", "name": "time", "content": "12:00"}, assistant("Noon.")], "tools": FUNCTIONS}
    if calls is None:
        with pytest.raises(Exception): trained(**called)
        return
    said = trained(**called)
    assert calls in said and "Noon." in said and "12:00" not in said and "the time" not in said
    if not calls: assert said.strip() == f"{end}Noon.{end}"


# ---- samples of a row do not see each other

@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_samples_of_a_row_have_the_outputs_that_they_have_alone(kind, attention):
    "In the learner, which switches off the cache that would hide the boundaries."
    tokenizer, model = make_tokenizer(), make_model(kind, attention)
    collate = DataCollatorForChat(tokenizer)
    tokens = tokenize_chat(chats(6), collate)
    packed = pack_dataset(tokens, 64)
    learn = Learner(model, TrainingArguments(use_cpu=True, disable_tqdm=True, per_device_eval_batch_size=1), data_collator=collate)
    assert any(len(row["seq_lengths"]) > 1 for row in packed)
    model.eval()
    for row in packed:
        whole = torch.as_tensor(learn.predict([row]).predictions)[0].split(row["seq_lengths"])
        for ids, logits in zip(torch.tensor(row["input_ids"]).split(row["seq_lengths"]), whole):
            with torch.no_grad(): torch.testing.assert_close(model(ids[None]).logits[0], logits, rtol=1e-4, atol=1e-5)


# ---- exact: workers, rewind, resume, streams

def learner(data, collate, **given):
    args = TrainingArguments(per_device_train_batch_size=4, max_steps=8, learning_rate=1e-2, seed=5, use_cpu=True, disable_tqdm=True, logging_steps=1, **given)
    return Learner(make_model(), args, train_dataset=data, data_collator=collate)


def losses(learn): return [r.loss for r in learn.history]


@pytest.mark.parametrize("packed", [False, True])
def test_workers_rewind_and_resume_give_the_same_run(tmp_path, packed):
    collate = DataCollatorForChat(make_tokenizer(), assistant_only_loss=True)
    data = pack_dataset(tokenize_chat(chats(40), collate), 40) if packed else chats(40)
    whole = learner(data, collate)
    whole.train()
    expected = losses(whole)
    workers = learner(Dataset.from_list(data), collate, dataloader_num_workers=2)
    workers.train()
    assert losses(workers) == expected
    back = learner(data, collate)
    back.step(5)
    back.rewind(3)
    back.train()
    assert losses(back)[-6:] == expected[-6:]
    first = learner(data, collate, output_dir=str(tmp_path), save_strategy="steps", save_steps=3)
    first.step(4)
    again = learner(data, collate, output_dir=str(tmp_path), save_strategy="steps", save_steps=3)
    again.train(resume_from_checkpoint=True)
    assert losses(again)[-5:] == expected[-5:]
    for a, b in zip(whole.model.parameters(), again.model.parameters()): assert torch.equal(a, b)


def test_a_stream_of_conversations(tmp_path):
    "An IterableDataset is tokenized, packed and trained on; columns that the model does not take are left for the collator."
    collate = DataCollatorForChat(make_tokenizer())
    stream = Dataset.from_list([c | {"source": "a"} for c in chats(40)]).to_iterable_dataset()
    learn = learner(stream, collate)
    learn.step(2)
    plain = learner([c for c in chats(40)], collate, train_sampling_strategy="sequential")
    plain.step(2)
    assert losses(learn) == losses(plain)
    rows = list(pack_dataset(tokenize_chat(stream, collate), 40))
    assert rows_of(rows) == rows_of(pack_dataset(tokenize_chat(chats(40), collate), 40))


# ---- templates

def test_a_template_without_marks_is_read_by_its_beginnings():
    samples = chats(9)
    marked, plain = make_tokenizer(), make_tokenizer(PLAIN)
    for s in samples: assert assistant_mask(marked, s["messages"]) == assistant_mask(plain, s["messages"])


@pytest.mark.parametrize("template", [
    PLAIN.replace("{{ m.content }}", "{% if loop.last %}in short {% endif %}{{ m.content }}"),      # the end of the conversation differs
    PLAIN.partition("{% if add_generation_prompt")[0],                                              # no generation prompt
], ids=["last message", "no generation prompt"])
def test_where_the_beginnings_are_ambiguous_marks_are_asked_for(template):
    with pytest.raises(ValueError, match=r"Write in the template.*\{% generation %\}"):
        DataCollatorForChat(make_tokenizer(template), assistant_only_loss=True)(chats(3))


def test_no_template_no_assistant_no_padding_token():
    chat = chats(2)
    with pytest.raises(ValueError, match="no chat template"): DataCollatorForChat(make_tokenizer(None))(chat)
    with pytest.raises(ValueError, match="no token of the assistant .roles: user"):
        DataCollatorForChat(make_tokenizer(), assistant_only_loss=True)([{"messages": [user("what is it ?")]}])
    bare = make_tokenizer()
    bare.pad_token = bare.eos_token = None
    with pytest.raises(ValueError, match="no padding token"): DataCollatorForChat(bare)(chat)
    with pytest.raises(ValueError, match="reads messages, prompt and completion"): DataCollatorForChat(make_tokenizer())([{"words": "is it"}])
    with pytest.raises(ValueError, match="a prompt and no completion"): DataCollatorForChat(make_tokenizer())([{"prompt": "is it"}])
    with pytest.raises(ValueError, match="truncation_mode='left'"): DataCollatorForChat(make_tokenizer(), truncation_mode="left")
    with pytest.raises(TypeError, match="AutoTokenizer"): DataCollatorForChat("gpt2")


def warned(f) -> list:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        f()
    return [str(w.message) for w in found if issubclass(w.category, UserWarning)]


def test_warnings_are_issued_once():
    short = DataCollatorForChat(make_tokenizer(), assistant_only_loss=True, max_length=4)
    message, = warned(lambda: [short(chats(3)) for _ in range(3)])
    assert "max_length=4 cuts off all trained tokens" in message
    assert not warned(lambda: DataCollatorForChat(make_tokenizer(), assistant_only_loss=True, max_length=12)(chats(3)))
    message, = warned(lambda: tokenize_chat(chats(3), short))
    assert message.startswith("3 of 3 samples were dropped")
    stopless = DataCollatorForChat(make_tokenizer(ONLY_CONTENT), assistant_only_loss=True)
    message, = warned(lambda: [stopless(chats(3)) for _ in range(3)])
    assert "'<end>'" in message and "{% generation %}" in message
    merging = make_tokenizer(PLAIN.replace("{% if add_generation_prompt %}<assistant> {% endif %}", "{% if add_generation_prompt %}<assistant> in {% endif %}"))
    message, = warned(lambda: DataCollatorForChat(merging)(DATA["prompt and completion, conversational"]()[:3]))
    assert "End the prompt at the end of a token" in message


def test_packing_names_what_it_needs():
    with pytest.raises(ValueError, match="tokenize them before"): pack_dataset(chats(2), 8)
    with pytest.raises(ValueError, match="'source' has no value for each token"): pack_dataset([{"input_ids": [1], "source": "a"}], 8)
    with pytest.raises(ValueError, match="positive"): pack_dataset([{"input_ids": [1]}], 0)
    assert packed_pieces([], 4) == []


def test_the_picture_shows_the_trained_tokens():
    tokenizer = make_tokenizer()
    batch = DataCollatorForChat(tokenizer, assistant_only_loss=True)(chats(2))
    shown = show_trained_tokens(batch, tokenizer)
    assert repr(shown).splitlines() == ["<user> what is the capital of France ? <end> <assistant>«it is Paris . <end>»", "5 of 15 tokens are trained"]
    assert "<pad>" not in repr(show_trained_tokens(batch, tokenizer, 0)) and "&lt;user&gt;" in shown._repr_html_()
    assert is_trained(batch["labels"][1].tolist())


# ---- tokenized samples with masks, ShareGPT, tools, streams

def masked(n=6) -> list:
    "Samples as TRL tokenizes them: tokens and masks, without labels."
    rows = tokenize_chat(chats(n), DataCollatorForChat(make_tokenizer(), assistant_only_loss=True))
    return [{"input_ids": r["input_ids"], "assistant_masks": [int(t != -100) for t in r["labels"]],
             "completion_mask": [int(i > 3) for i in range(len(r["labels"]))]} for r in rows]


@pytest.mark.parametrize("names", [("assistant_masks",), ("completion_mask",), ("assistant_masks", "completion_mask")], ids=str)
@pytest.mark.parametrize("completion", [None, False, True])
def test_labels_of_masks_are_those_of_trl(trl, tmp_path, names, completion):
    samples = [{k: s[k] for k in ("input_ids", *names)} for s in masked()]
    theirs = sft(trl, samples, tmp_path, completion_only_loss=completion)
    collate = DataCollatorForChat(make_tokenizer(), completion_only_loss=completion)
    expected = rows_of(theirs.train_dataset)
    issued = warned(lambda: collate(samples))
    assert rows_of(tokenize_chat(samples, collate)) == expected == rows_of(tokenize_chat(Dataset.from_list(samples), collate))
    same_batches(collate(samples), theirs.data_collator(list(theirs.train_dataset)))
    # packed without labels: the masks are packed with the tokens
    packed = pack_dataset(samples, 40)
    assert [collate.encode(row)["labels"] for row in packed] == [row["labels"] for row in pack_dataset(expected, 40)]
    # TRL trains the prompts without a word
    assert len(issued) == ("completion_mask" in names and completion is None)
    assert all("completion_only_loss=True" in text for text in issued)


def test_masks_reach_the_collator_and_wrong_ones_are_errors():
    "The learner removes columns that the model does not take, but not these; assistant_only_loss needs them."
    only = [{k: s[k] for k in ("input_ids", "assistant_masks")} for s in masked(24)]
    by_masks, by_messages = learner(Dataset.from_list(only), DataCollatorForChat(make_tokenizer())), learner(chats(), DataCollatorForChat(make_tokenizer(), assistant_only_loss=True))
    by_masks.step(2), by_messages.step(2)
    assert losses(by_masks) == losses(by_messages)
    strict = DataCollatorForChat(make_tokenizer(), assistant_only_loss=True)
    assert strict.encode(only[0])["labels"] == strict.encode(chats(1)[0])["labels"]
    with pytest.raises(ValueError, match="neither labels nor assistant_masks; it has input_ids"): strict([{"input_ids": [5, 6]}])
    with pytest.raises(ValueError, match="neither labels nor assistant_masks"): strict(pack_dataset([{"input_ids": [5, 6]}], 4))
    with pytest.raises(ValueError, match="2 tokens and 1 values in assistant_masks"): strict([{"input_ids": [5, 6], "assistant_masks": [1]}])


def shared(n=9, names=("human", "gpt", "system")) -> list:
    roles = dict(zip(("user", "assistant", "system"), names))
    whole = [[{"role": "system", "content": "you are short ."}, *c["messages"]] for c in chats(n)]
    return [{"conversations": [{"from": roles[m["role"]], "value": m["content"]} for m in w]} for w in whole]


@pytest.mark.parametrize("only", [False, True])
@pytest.mark.parametrize("template", [MARKED, PLAIN], ids=["marked", "plain"])
def test_roles_of_sharegpt(only, template):
    collate = DataCollatorForChat(make_tokenizer(template), assistant_only_loss=only)
    same = {"conversations": shared(names=("user", "assistant", "system"))}["conversations"]
    messages = [{"messages": [{"role": m["from"], "content": m["value"]} for m in c["conversations"]]} for c in same]
    assert tokenize_chat(shared(), collate) == tokenize_chat(same, collate) == tokenize_chat(messages, collate)
    pair = {"prompt": [{"from": "human", "value": "what is it ?"}], "chosen": [{"from": "gpt", "value": "it is Rome"}], "rejected": [{"from": "gpt", "value": "it is big"}]}
    plain = {"prompt": [user("what is it ?")], "chosen": [assistant("it is Rome")], "rejected": [assistant("it is big")]}
    prefer = DataCollatorForPreference(make_tokenizer(template))
    assert prefer.encode(pair) == prefer.encode(plain)


TOOLS = "{% if tools %}{% for t in tools %}<system> {{ t.function.name }} {% endfor %}{% endif %}" + MARKED
PARIS = [{"type": "function", "function": {"name": "Paris", "description": "", "parameters": {"type": "object", "properties": {}}}}]


def test_tools_may_be_a_json_text(trl, tmp_path):
    tokenizer = make_tokenizer(TOOLS)
    samples = [c | {"tools": json.dumps(PARIS if i % 2 else [])} for i, c in enumerate(chats(6))]
    theirs = sft(trl, samples, tmp_path, tokenizer=tokenizer)
    collate = DataCollatorForChat(tokenizer)
    as_list = [c | {"tools": json.loads(c["tools"])} for c in samples]
    assert tokenize_chat(samples, collate) == rows_of(theirs.train_dataset) == tokenize_chat(as_list, collate)
    with pytest.raises(ValueError, match=r"not JSON .*json.dumps"): collate([chats(1)[0] | {"tools": "Paris("}])
    assert collate.encode(chats(1)[0] | {"tools": ""}) == collate.encode(chats(1)[0])
    pair = {"prompt": [user("what is it ?")], "chosen": [assistant("it is Rome")], "rejected": [assistant("it is big")]}
    prefer = DataCollatorForPreference(tokenizer)
    assert prefer.encode(pair | {"tools": json.dumps(PARIS)}) == prefer.encode(pair | {"tools": PARIS}) != prefer.encode(pair)


def test_a_stream_that_does_not_declare_its_columns(trl, tmp_path):
    from datasets import IterableDataset
    def made():
        for i, c in enumerate(chats(40)): yield c | {"source": "a"} | ({"later": "b"} if i > 20 else {})
    stream = IterableDataset.from_generator(made)
    assert stream.column_names is None
    collate = DataCollatorForChat(make_tokenizer(), assistant_only_loss=True)
    torch.manual_seed(1)
    tokens = tokenize_chat(stream, collate)
    assert torch.equal(torch.rand(1), torch.rand(1, generator=torch.Generator().manual_seed(1)))
    expected = tokenize_chat(chats(40), collate)
    assert list(tokens) == expected
    assert list(pack_dataset(tokens, 40)) == pack_dataset(expected, 40)
    theirs = sft(trl, chats(40), tmp_path, assistant_only_loss=True, packing=True, max_length=40)
    assert rows_of(pack_dataset(tokens, 40)) == rows_of(theirs.train_dataset)
    packed = IterableDataset.from_generator(lambda: iter(pack_dataset(expected, 40)))
    assert list(tokenize_chat(packed, collate)) == pack_dataset(expected, 40)


def test_a_conversation_that_begins_with_the_assistant():
    "Its first message is trained, as with marks; where the template has no prompt to look for, the error says so."
    for begin in ([], [{"role": "system", "content": "you are short ."}]):
        for rest in ([], chats(3)[2]["messages"]):
            messages = [*begin, assistant("what is it ?"), *rest]
            assert assistant_mask(make_tokenizer(PLAIN), messages) == assistant_mask(make_tokenizer(MARKED), messages)
    # a beginning of all conversations is no part of the message
    started = "<system> you are big <end> "
    messages = [assistant("what is it ?"), *chats(1)[0]["messages"]]
    assert assistant_mask(make_tokenizer(started + PLAIN), messages) == assistant_mask(make_tokenizer(started + MARKED), messages)
    other = PLAIN.replace("%}<assistant> {% endif", "%}<assistant> in {% endif")
    with pytest.raises(ValueError, match="begins with the assistant.*generation prompt is not in its first message"):
        assistant_mask(make_tokenizer(other), messages)
    with pytest.raises(ValueError, match="adds no token"): assistant_mask(make_tokenizer(PLAIN.partition("{% if add_generation_prompt")[0]), messages)
    with pytest.raises(ValueError, match="no messages"):
        DataCollatorForPreference(make_tokenizer())([{"chosen": [assistant("it is")], "rejected": [assistant("you are")]}])


# ---- preference pairs

def pairs(n=12) -> list:
    return [{"prompt": c["messages"][:-1], "chosen": c["messages"][-1:], "rejected": [assistant("you are big ." if i % 2 else "it is in Spain and Italy .")]}
            for i, c in enumerate(chats(n))]


def text_pairs(n=12) -> list:
    return [{k: " ".join(m["content"] for m in v) + (" " if k == "prompt" else "") for k, v in p.items()} for p in pairs(n)]


def without_prompt(n=12) -> list: return [{k: p["prompt"] + p[k] for k in ("chosen", "rejected")} for p in pairs(n)]


def dpo(trl, samples, tmp_path, **given):
    given = dict(max_length=None, gradient_checkpointing=False, bf16=False, report_to="none", use_cpu=True, disable_tqdm=True, seed=3, logging_steps=1,
                 per_device_train_batch_size=4, max_steps=5, learning_rate=1e-2, save_strategy="no", lr_scheduler_type="constant") | given
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trl.DPOTrainer(make_model(), make_model(), args=trl.DPOConfig(str(tmp_path), **given), train_dataset=Dataset.from_list(samples), processing_class=make_tokenizer())


@pytest.mark.parametrize("make", [pairs, text_pairs, without_prompt])
@pytest.mark.parametrize("given", [{}, {"max_length": 14}, {"max_length": 14, "truncation_mode": "keep_end"}, {"pad_to_multiple_of": 16}], ids=str)
def test_preference_batches_are_those_of_trl(trl, tmp_path, make, given):
    theirs = dpo(trl, make(), tmp_path, **given)
    collate = DataCollatorForPreference(make_tokenizer(), **given)
    rows = [{k: list(r[k]) for k in ("prompt_ids", "chosen_ids", "rejected_ids")} for r in theirs.train_dataset]
    ours = [collate.encode(s) for s in make()]
    assert [r for r in ours if "keep_end" in given.values() or len(r["prompt_ids"]) < given.get("max_length", 1000)] == rows
    logps = [r | {"ref_chosen_logps": -1.5, "ref_rejected_logps": -2.5} for r in rows[:4]]
    a, b = collate(logps), theirs.data_collator(logps)
    assert sorted(a) == sorted(b)
    same_batches(a, b, [*b])


def test_preference_data_names_what_it_needs():
    with pytest.raises(ValueError, match="has prompt, chosen and rejected; this one has text"):
        DataCollatorForPreference(make_tokenizer())([{"text": "is it"}])


# ---- the DPO recipe of examples/, and its short form in the tutorial

@pytest.fixture(scope="module")
def recipe():
    "The names that the example defines."
    return runpy.run_path(str(Path(__file__).parents[2]/"examples/dpo.py"), run_name="recipe")


@pytest.fixture(scope="module")
def short_recipe():
    "The cell of the tutorial that defines the loss, as it stands there."
    cells = json.loads((Path(__file__).parents[2]/"nbs/tutorials/preferences.ipynb").read_text(encoding="utf-8"))["cells"]
    source, = ["".join(c["source"]) for c in cells if "class DPOTrainer(Trainer)" in "".join(c["source"])]
    names = {"torch": torch, "F": torch.nn.functional, "Trainer": Learner}
    exec(source, names)
    return names


def dpo_losses(recipe, samples, model, steps=5, **given):
    args = TrainingArguments(per_device_train_batch_size=4, max_steps=steps, learning_rate=1e-2, lr_scheduler_type="constant", seed=3, logging_steps=1, use_cpu=True,
                             disable_tqdm=True, gradient_accumulation_steps=given.pop("gradient_accumulation_steps", 1))
    learn = recipe["DPOTrainer"](model, args, train_dataset=samples, data_collator=DataCollatorForPreference(make_tokenizer()), **given)
    learn.train()
    return learn, [row["loss"] for row in learn.state.log_history if "loss" in row]


@pytest.mark.parametrize("accumulation", [1, 2])
def test_dpo_losses_are_those_of_trl(trl, tmp_path, recipe, accumulation):
    theirs = dpo(trl, pairs(), tmp_path, gradient_accumulation_steps=accumulation)
    theirs.train()
    expected = [row["loss"] for row in theirs.state.log_history if "loss" in row]
    learn, found = dpo_losses(recipe, pairs(), make_model(), ref_model=make_model(), gradient_accumulation_steps=accumulation)
    assert found == pytest.approx(expected, rel=1e-5) and expected[-1] < expected[0]
    margins = [row["rewards/margins"] for row in theirs.state.log_history if "rewards/margins" in row]
    assert [row["rewards/margins"] for row in learn.state.log_history if "rewards/margins" in row] == pytest.approx(margins, rel=1e-4, abs=1e-6)
    assert learn.evaluate(pairs())["eval_loss"] < expected[0]


def test_the_short_recipe_has_the_same_losses(recipe, short_recipe):
    longer, shorter = (dpo_losses(names, pairs(), make_model(), ref_model=make_model()) for names in (recipe, short_recipe))
    assert shorter[1] == longer[1]
    assert [row["margin"] for row in shorter[0].state.log_history if "margin" in row] == [row["rewards/margins"] for row in longer[0].state.log_history if "rewards/margins" in row]


def test_dpo_without_a_reference_names_the_three(recipe):
    with pytest.raises(ValueError, match="ref_model=, a model with an adapter, or ref"): dpo_losses(recipe, pairs(), make_model())


def test_dpo_against_the_disabled_adapter_and_against_log_probabilities_in_the_data(trl, tmp_path, recipe):
    peft = pytest.importorskip("peft")
    from transformers import set_seed
    lora = lambda: peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = trl.DPOConfig(str(tmp_path), max_length=None, gradient_checkpointing=False, bf16=False, report_to="none", use_cpu=True, disable_tqdm=True, seed=3,
                               logging_steps=1, per_device_train_batch_size=4, max_steps=5, learning_rate=1e-2, save_strategy="no", lr_scheduler_type="constant")
        theirs = trl.DPOTrainer(make_model(), args=config, train_dataset=Dataset.from_list(pairs()), processing_class=make_tokenizer(), peft_config=lora())
    theirs.train()
    expected = [row["loss"] for row in theirs.state.log_history if "loss" in row]
    def adapted():
        model = make_model()
        set_seed(3)
        return peft.get_peft_model(model, lora())
    assert dpo_losses(recipe, pairs(), adapted())[1] == pytest.approx(expected, rel=1e-5)
    collate = DataCollatorForPreference(make_tokenizer())
    with torch.no_grad(): chosen, rejected = recipe["log_probs"](make_model(), collate(pairs())).chunk(2)
    ready = [p | {"ref_chosen_logps": c.item(), "ref_rejected_logps": r.item()} for p, c, r in zip(pairs(), chosen, rejected)]
    assert dpo_losses(recipe, ready, adapted())[1] == pytest.approx(expected, rel=1e-5)


def test_a_collator_of_trl_trains_here_with_the_same_losses(trl):
    "And ours on the same tokens."
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling as Theirs
    ours = DataCollatorForChat(make_tokenizer(), assistant_only_loss=True)
    tokens = tokenize_chat(chats(), ours)
    a, b = learner(tokens, ours), learner(tokens, Theirs(pad_token_id=0))
    a.step(3), b.step(3)
    assert losses(a) == losses(b)
