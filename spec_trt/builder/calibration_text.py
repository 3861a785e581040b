"""The text that activations are measured on when no other is given: short exchanges of many kinds."""

from dataclasses import dataclass

__all__ = ["EXCHANGES", "Exchange"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One question and its answer."""

    question: str
    answer: str


EXCHANGES = (
    Exchange(
        question="Why does bread rise, and what goes wrong when it does not?",
        answer=(
            "Yeast eats the sugars in the dough and gives off carbon dioxide. Gluten, the stretchy net that "
            "kneading builds, holds the gas in small bubbles, so the loaf grows. If it stays flat, the yeast may "
            "be old, the water was too hot and killed it, or the room is so cool that it needs more time. Salt "
            "slows yeast down too: mix it into the flour and never pour it straight on top."
        ),
    ),
    Exchange(
        question="Write a Python function that counts how often each word occurs in a file.",
        answer=(
            "```python\nfrom collections import Counter\nfrom pathlib import Path\n\n\ndef count_words(path):\n"
            '    """Return a Counter of the lower-case words in a text file."""\n'
            '    words = Path(path).read_text(encoding="utf-8").lower().split()\n'
            '    return Counter(word.strip(".,;:!?\\"()") for word in words)\n\n\n'
            'for word, count in count_words("notes.txt").most_common(10):\n    print(f"{count:6d}  {word}")\n```\n'
            "`Counter` is a dictionary; `most_common` sorts it. Punctuation is stripped from both ends of a word."
        ),
    ),
    Exchange(
        question="A train leaves at 9:40 and covers 210 km at 84 km/h. When does it arrive?",
        answer=(
            "Time is distance over speed: 210 / 84 = 2.5 hours, that is 2 hours and 30 minutes. Adding this to "
            "9:40 gives 12:10. So the train arrives at 12:10, if it makes no stops on the way."
        ),
    ),
    Exchange(
        question="Übersetze ins Englische: Der alte Leuchtturm steht seit 1887 am Rand der Klippe.",
        answer="The old lighthouse has stood at the edge of the cliff since 1887.",
    ),
    Exchange(
        question=(
            "Summarize: The town council met on Tuesday to discuss the flooded underpass. Residents complained that "
            "pumps ordered in spring had not been delivered. The engineer, Ms. Okafor, said the supplier had gone "
            "bankrupt and that a second tender would cost 40,000 more. After two hours the council voted seven to "
            "four to pay for it out of the road budget, which delays the new cycle lane until next year."
        ),
        answer=(
            "The council agreed, seven votes to four, to spend 40,000 more on pumps for the flooded underpass, since "
            "the first supplier went bankrupt. The money comes from the road budget, so the cycle lane has to wait "
            "until next year."
        ),
    ),
    Exchange(
        question="Tell me the beginning of a story about a clockmaker.",
        answer=(
            "Nobody in the valley had asked Irena to mend the tower clock, which was why she did it at night. She "
            'carried her tools up the ladder in a milk pail, lit one candle, and listened. "You have been wrong for '
            'thirty years," she told the great brass wheel, "and so has everyone who trusted you." Far below, a '
            "door opened. Someone with a lantern was crossing the square, slowly, as if counting every step."
        ),
    ),
    Exchange(
        question="Extract name, age and city as JSON from: Tomás Rivera (34) moved from Lima to Porto in May.",
        answer='{"name": "Tomás Rivera", "age": 34, "city": "Porto", "previous_city": "Lima", "moved": "May"}',
    ),
    Exchange(
        question="What is the difference between weather and climate?",
        answer=(
            "Weather is what the air does today: rain at noon, wind in the evening, 18 °C at your window. Climate "
            "is what you may expect over decades: how many days of frost a winter brings, or how dry a July is. A "
            "single cold week says little about climate, just as one throw says little about a pair of dice.\n\n"
            "- Weather: hours to days, one place.\n- Climate: thirty years or more, averages and extremes."
        ),
    ),
    Exchange(
        question="Draft a short e-mail that postpones a meeting.",
        answer=(
            "Subject: New time for Thursday's review\n\nHello everyone,\n\nthe test results arrive a day late, so I "
            "would like to move our review from Thursday, 2 p.m., to Friday, 10 a.m., in the same room. If that does "
            "not suit you, please answer by Wednesday noon and I will look for another slot.\n\nBest regards,\nMarta"
        ),
    ),
    Exchange(
        question="How do vaccines work?",
        answer=(
            "A vaccine shows the immune system a harmless piece of a virus or bacterium, or the instructions for "
            "making one. B cells learn to make antibodies against it and T cells learn to recognise infected cells; "
            "some of both remain as memory cells. When the real germ comes, they respond within hours instead of "
            "days, often before you feel ill. Some memories fade, and that is what booster doses are for."
        ),
    ),
    Exchange(
        question="Solve for x: 3(x - 4) + 2x = 18, and check the result.",
        answer=(
            "Expand: 3x - 12 + 2x = 18. Collect terms: 5x - 12 = 18. Add 12: 5x = 30. Divide by 5: x = 6.\n"
            "Check: 3 * (6 - 4) + 2 * 6 = 6 + 12 = 18. The result is right."
        ),
    ),
    Exchange(
        question="List three causes of the fall of the Western Roman Empire and explain one of them.",
        answer=(
            "1. Pressure on the frontiers from peoples who were themselves being pushed west.\n2. Civil wars and "
            "short-lived emperors.\n3. A shrinking tax base.\n\nThe third fed the other two: provinces that were "
            "lost or ruined paid nothing, so fewer soldiers could be paid, so more provinces were lost. North "
            "Africa, taken by the Vandals in 439, had supplied both grain and a large part of the revenue."
        ),
    ),
    Exchange(
        question="Explain in SQL how to find customers without orders.",
        answer=(
            "```sql\nSELECT c.id, c.name\nFROM customers AS c\nLEFT JOIN orders AS o ON o.customer_id = c.id\n"
            "WHERE o.id IS NULL\nORDER BY c.name;\n```\nThe left join keeps every customer; where no order matches, "
            "the order's columns are NULL, and the filter keeps just those rows."
        ),
    ),
    Exchange(
        question="Play the part of a museum guide and describe a stone axe.",
        answer=(
            "Come closer, please, and look at the edge. Somebody chose this flint, turned it in the hand a hundred "
            "times, and struck it where it would break as they wished. It is about 250,000 years old. It fits a "
            "right hand better than a left one; try it with the copy on the table. With it you could skin a deer, "
            "cut a branch or crack a bone, and when it grew blunt, one good blow made it sharp again."
        ),
    ),
    Exchange(
        question="Who wrote this line, and what does it mean: 'A rose by any other name would smell as sweet'?",
        answer=(
            "It is from Shakespeare's Romeo and Juliet (act 2, scene 2). Juliet says that a name is only a label: "
            "Romeo would be the same man if he were not called Montague, and their families' feud is about nothing "
            "more than names."
        ),
    ),
    Exchange(
        question="Describe the steps for changing a bicycle tube.",
        answer=(
            "First take the wheel out and let out all the air. Push one side of the tyre over the rim with two "
            "levers, pull the tube out, and run your fingers along the inside of the tyre: whatever pierced the tube "
            "may still be there. Pump a little air into the new tube, put the valve through its hole, tuck the tube "
            "in, and press the tyre back by hand, ending at the valve. Inflate to the pressure printed on the side, "
            "for example 4.5 bar, and spin the wheel to see whether it runs true."
        ),
    ),
)
