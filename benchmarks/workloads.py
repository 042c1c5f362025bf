"""The workloads of the benchmarks: language-model programs with fixed lengths on synthetic text.

Each workload is a program plus fresh items from a seed. Lengths are in words; a word is one token of the SmolLM2
tokenizer and a few bytes for the mock. `Size` scales them all, so that the same shapes run on a laptop and on a GPU.
"""

from __future__ import annotations

import io
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import lmc

WORDS = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother
area money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city community name president team minute idea body information
back parent face others level office door health person art war history party result change morning reason
research girl guy moment air teacher force education foot boy age policy music market sense nation plan college
interest death experience effect class control field development role effort rate heart drug show leader light
voice wife police mind price report decision son view relationship town road arm difference value building
action season society tax director position player record paper space ground form event official matter center
couple site project activity star table need court oil situation cost industry figure street image phone data
picture practice piece land product doctor wall patient worker news test movie north love support technology
step baby computer type attention film tree source organization hair look century evidence window culture chance
brother energy period course summer plant opportunity term letter condition choice rule daughter south husband
floor campaign material population call economy hospital church risk fire future bank west sport board subject
officer rest behavior performance top goal bed order author blood agency nature color store sound movement page
race concern series language response animal factor decade article east artist scene stock career treatment
approach size dog fund media sign thought list individual quality pressure answer resource meeting disease
success cup amount ability staff character growth loss degree attack region television box training trade deal
election feeling standard bill message analysis benefit sex lawyer section glass skill sister professor
operation crime stage authority design sort knowledge gun station strategy truth song example environment leg
public executive set rock note manager help network science memory card seat cell trial expert spring firm radio
management ball talk theory impact statement charge direction weapon employee peace base pain play measure
interview chair fish camera structure politics bit weight candidate production trip evening conference unit
style adult past edge writer trouble challenge fear shoulder institution sea dream bar property stuff detail
method magazine hotel soldier heat cause generation truck
""".split()

Item = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """Scales every length of a workload: `words` for prompts, `tokens` for answers (never below 1)."""

    scale: float = 1.0

    def words(self, count: int) -> int:
        return max(1, round(count * self.scale))

    tokens = words


@dataclass(frozen=True)
class Workload:
    """A program of known shape. `items(n, seed)` gives fresh text for each seed; `gens` is sampling ops per item."""

    name: str
    shape: str
    n: int
    gens: int
    program: Any  # an lmc function
    item: Callable[[Random], Item]

    def items(self, n: int, seed: int) -> list[Item]:
        rng = Random(f"{self.name}/{seed}")
        return [self.item(rng) for _ in range(n)]


def text(rng: Random, words: int) -> str:
    """Plain English words, one token each."""
    return " ".join(rng.choices(WORDS, k=words))


def answer(name: str, tokens: int) -> Any:
    """An answer of exactly `tokens` tokens: the model's end-of-text does not end it."""
    return lmc.gen(name, max_tokens=tokens, ignore_eos=True)


# -- the shapes ----------------------------------------------------------------------------------------------------
# A text that all items share is made once, here: to the program it is a constant, as few-shot examples are.


def few_shot_qa(size: Size) -> Workload:
    shots = text(Random("few-shot"), size.words(1200))

    @lmc.function
    def qa(s, question):
        s += shots + "\nQuestion: " + question + "\nAnswer:" + answer("answer", 1)

    return Workload("few-shot", "1200 w shared + 60 w, gen 1", 512, 1, qa,
                    lambda rng: {"question": text(rng, size.words(60))})


def choice_scoring(size: Size) -> Workload:
    shots = text(Random("choice"), size.words(2000))

    @lmc.function
    def score(s, context, endings):
        s += shots + "\n" + context + " " + lmc.select("ending", choices=[endings[i] for i in range(4)])

    return Workload("choice", "2000 w shared + 50 w, select of 4 x 14 w", 200, 1, score, lambda rng: {
        "context": text(rng, size.words(50)),
        "endings": [text(rng, size.words(14)) for _ in range(4)],
    })


def react(size: Size) -> Workload:
    shots = text(Random("react"), size.words(1200))
    thought, action = size.tokens(40), size.tokens(16)

    @lmc.function
    def agent(s, question, observations):
        s += shots + "\nQuestion: " + question
        for i, observation in enumerate(observations):
            s += f"\nThought {i}:" + answer("thought", thought) + f"\nAction {i}:" + answer("action", action)
            s += f"\nObservation {i}: " + observation
        s += "\nAnswer:" + answer("answer", action)

    return Workload("react", "1200 w shared, 4 x (gen 40, gen 16, 60 w), gen 16", 100, 9, agent, lambda rng: {
        "question": text(rng, size.words(20)),
        "observations": [text(rng, size.words(60)) for _ in range(4)],
    })


def agents(size: Size) -> Workload:
    tokens = size.tokens(48)

    @lmc.function
    def act(s, memory):
        s += memory + "\nNext:" + answer("next", tokens)

    return Workload("agents", "280 w, gen 48", 200, 1, act, lambda rng: {"memory": text(rng, size.words(280))})


def tree_of_thought(size: Size) -> Workload:
    propose, extend, rate, final = size.tokens(48), size.tokens(64), size.tokens(16), size.tokens(8)

    @lmc.function
    def tree(s, question):
        s += question + "\nPlan:"
        scores = []
        for i, plan in enumerate(s.fork(3)):
            plan += f" {i}" + answer("plan", propose)
            for j, step in enumerate(plan.fork(2)):
                step += f"\nStep {j}:" + answer("step", extend)
                for k, score in enumerate(step.fork(2)):
                    score += f"\nScore {k}:" + answer("score", rate)
                    scores.append(score)
        s += "\n".join([score["score"] for score in scores]) + "\nBest:" + answer("best", final)

    return Workload("tree", "1240 w; fork 3 x gen 48, each 2 x gen 64, each 2 x gen 16; joined, gen 8", 24, 22, tree,
                    lambda rng: {"question": text(rng, size.words(1240))})


def skeleton_of_thought(size: Size) -> Workload:
    outline, point = size.tokens(64), size.tokens(96)

    @lmc.function
    def skeleton(s, question):
        s += question + "\nOutline:" + answer("outline", outline)
        forks = s.fork(5)
        for i, f in enumerate(forks):
            f += f"\nPoint {i}:" + answer("point", point)
        s += "\n".join([f["point"] for f in forks]) + "\nSummary:" + answer("summary", outline)

    return Workload("skeleton", "40 w, gen 64, fork 5 x gen 96, merged, gen 64", 60, 7, skeleton,
                    lambda rng: {"question": text(rng, size.words(40))})


def judge(size: Size) -> Workload:
    judgement, summary = size.tokens(96), size.tokens(48)

    @lmc.function
    def grade(s, essay):
        s += "Essay: " + essay
        forks = s.fork(3)
        for f, dimension in zip(forks, ("clarity", "originality", "evidence")):
            f += f"\nJudge its {dimension}:" + answer("judgement", judgement)
        s += "\n".join([f["judgement"] for f in forks]) + "\nSummary:" + answer("summary", summary)
        s += "\nGrade: " + lmc.gen("grade", max_tokens=48, regex=r'\{"grade": "[ABCD][+-]?", "why": "[\w ]{8,40}"\}')

    return Workload("judge", "500 w, fork 3 x gen 96, merged, gen 48, JSON by regex", 80, 5, grade,
                    lambda rng: {"essay": text(rng, size.words(500))})


CHARACTER = (
    r'\{\n  "name": "[\w ]{1,16}",\n  "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",\n'
    r'  "blood": "(Pure|Half|Muggle)",\n  "occupation": "(student|teacher|auror)",\n'
    r'  "wand": \{"wood": "[\w ]{1,12}", "core": "[\w ]{1,16}", "length": [0-9]{1,2}\.[0-9]\},\n'
    r'  "alive": "(Alive|Deceased)",\n  "patronus": "[\w ]{1,16}",\n  "boggart": "[\w ]{1,16}"\n\}'
)


def json_decoding(size: Size) -> Workload:
    @lmc.function
    def character(s, source):
        s += source + "\nThe character as JSON:\n" + lmc.gen("json", max_tokens=192, regex=CHARACTER)

    return Workload("json", "300 w, one regex with 8 fields, about 110 tokens", 160, 1, character,
                    lambda rng: {"source": text(rng, size.words(300))})


def chat(size: Size, name: str, n: int, tokens: int) -> Workload:
    length = size.tokens(tokens)

    @lmc.function
    def turns(s, questions):
        for question in questions:
            s += "\nUser: " + question + "\nAssistant:" + answer("answer", length)

    return Workload(name, f"4 x (220 w, gen {tokens})", n, 4, turns,
                    lambda rng: {"questions": [text(rng, size.words(220)) for _ in range(4)]})


def figures(size: Size) -> tuple[Workload, ...]:
    """The ten workloads of the comparison with other engines, in its order."""
    return (
        few_shot_qa(size),
        choice_scoring(size),
        react(size),
        agents(size),
        tree_of_thought(size),
        skeleton_of_thought(size),
        judge(size),
        json_decoding(size),
        chat(size, "chat-short", 80, 8),
        chat(size, "chat-long", 40, 256),
    )


# -- pictures ----------------------------------------------------------------------------------------------------------


def pictures(size: Size) -> Workload:
    """A picture and a few words on it, and six questions by fork: the tower looks once at each, its tokens are computed once."""
    length = size.tokens(64)

    @lmc.function
    def ask(s, picture, caption):
        s += lmc.user_begin() + lmc.image(picture) + caption
        forks = s.fork(len(QUESTIONS))
        for f, question in zip(forks, QUESTIONS, strict=True):
            f += "\n" + question + lmc.user_end() + lmc.assistant(answer("answer", length))
        return [f["answer"] for f in forks]

    return Workload("pictures", "a picture, 30 w, fork 6 x (9 w, gen 64)", 64, len(QUESTIONS), ask,
                    lambda rng: {"picture": picture(rng, 336, 336), "caption": text(rng, size.words(30))})


def videos(size: Size, frames: int) -> Workload:
    """The same on a video, of which the model is shown so many frames."""
    length = size.tokens(64)

    @lmc.function
    def ask(s, film, caption):
        s += lmc.user_begin() + lmc.video(film, num_frames=frames) + caption
        forks = s.fork(len(QUESTIONS))
        for f, question in zip(forks, QUESTIONS, strict=True):
            f += "\n" + question + lmc.user_end() + lmc.assistant(answer("answer", length))
        return [f["answer"] for f in forks]

    return Workload("videos", f"{frames} frames, 30 w, fork 6 x (9 w, gen 64)", 64, len(QUESTIONS), ask,
                    lambda rng: {"film": film(rng, 336, 336, 2 * frames), "caption": text(rng, size.words(30))})


QUESTIONS = (
    "What is in the middle of it?", "Which colours has it?", "How many things are on it?", "Where was it taken, and when?",
    "What is strange about it?", "Is the text about it true?",
)  # fmt: skip


def picture(rng: Random, width: int, height: int, square: int = 14) -> bytes:
    """A PNG of squares of random colours."""
    rows = []
    for y in range(height):
        if y % square == 0:
            row = b"\0" + b"".join(rng.randbytes(3) * square for _ in range(-(-width // square)))[: 3 * width]
        rows.append(row)
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(b"".join(rows), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks)


def film(rng: Random, width: int, height: int, frames: int) -> bytes:
    """An MP4 of such pictures, four a second. Needs PyAV."""
    import av
    from PIL import Image

    with av.open(buffer := io.BytesIO(), "w", format="mp4") as container:
        stream: Any = container.add_stream("mpeg4", rate=4)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for _ in range(frames):
            container.mux(stream.encode(av.VideoFrame.from_image(Image.open(io.BytesIO(picture(rng, width, height))))))
        container.mux(stream.encode())
    return buffer.getvalue()


# -- tools that block ----------------------------------------------------------------------------------------------


def slow_tool(seconds: float = 0.5) -> Workload:
    """ReAct whose tool blocks: no program may wait for another one's tool."""

    def search(query: str) -> str:
        time.sleep(seconds)
        return "about " + query

    @lmc.function
    def agent(s, question):
        s += "Question: " + question
        for i in range(2):
            s += f"\nAction {i}:" + lmc.gen("action", max_tokens=8)
            s += "\nObservation:" + search(s["action"])
        s += "\nAnswer:" + lmc.gen("answer", max_tokens=16)

    return Workload("slow-tool", f"2 x (gen 8, a tool that blocks for {seconds:g} s), gen 16", 256, 3, agent,
                    lambda rng: {"question": text(rng, 20)})


# -- what the host costs -------------------------------------------------------------------------------------------


def host_overhead() -> tuple[Workload, ...]:
    """Small programs for a model that answers at once: their time is the frontend's own."""

    @lmc.function
    def one_gen(s, question):
        s += "Question: " + question + "\nAnswer:" + lmc.gen("answer", max_tokens=16)

    @lmc.function
    def judge7(s, essay):
        s += "Essay: " + essay
        forks = s.fork(5)
        for f, dimension in zip(forks, ("clarity", "originality", "evidence", "structure", "style")):
            f += f"\nJudge its {dimension}:" + lmc.gen("judgement", max_tokens=16)
        s += "\n".join([f["judgement"] for f in forks]) + "\nSummary:" + lmc.gen("summary", max_tokens=16)
        s += "\nGrade:" + lmc.gen("grade", max_tokens=16)

    @lmc.function
    def tree39(s, question):
        s += "Question: " + question
        scores = []
        for i, plan in enumerate(s.fork(3)):
            plan += f"\nPlan {i}:" + lmc.gen("plan", max_tokens=16)
            for j, step in enumerate(plan.fork(3)):
                step += f"\nStep {j}:" + lmc.gen("step", max_tokens=16)
                for k, score in enumerate(step.fork(3)):
                    score += f"\nScore {k}:" + lmc.gen("score", max_tokens=16)
                    scores.append(score)
        return [score["score"] for score in scores]  # unread forks would not run at all

    @lmc.function
    def decide20(s, question):
        s += "Question: " + question
        for i in range(20):
            s += f"\nStep {i}:" + lmc.gen("step", max_tokens=8)
            if "a" in s["step"]:
                s += " Go on."
            else:
                s += " Turn back."

    def item(key: str) -> Callable[[Random], Item]:
        return lambda rng: {key: text(rng, 20)}

    return (
        Workload("host-one-gen", "one gen", 1000, 1, one_gen, item("question")),
        Workload("host-judge", "judge, 7 gens", 1000, 7, judge7, item("essay")),
        Workload("host-tree", "tree of thought 3^3, 39 gens", 1000, 39, tree39, item("question")),
        Workload("host-paths", "20 gens, a decision on each: every item on a path of its own", 1000, 20, decide20, item("question")),
    )
