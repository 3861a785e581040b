"""Prompts of several kinds, for who has none at hand: some answers repeat their prompt, some don't."""

from spec_trt.prompts import PromptRecord

__all__ = ["BUILT_IN_PROMPTS"]

BUILT_IN_PROMPTS = (
    PromptRecord(
        turns=[
            "Summarize in two sentences: The night ferry to the islands was cancelled on Tuesday because of fog, the "
            "third time this month. Passengers who had booked a cabin were offered beds in the sports hall near the "
            "pier, where volunteers served soup until midnight. The ferry company said that a second radar will be "
            "fitted in spring, and that passengers of the cancelled ferry can travel any day this week."
        ],
        category="summary",
    ),
    PromptRecord(
        turns=["Write a Python function that returns the n-th Fibonacci number, and a short example that calls it."],
        category="code",
    ),
    PromptRecord(turns=["What is the difference between weather and climate?"], category="question"),
    PromptRecord(
        turns=[
            "A shop sells pens at 3 for 2 euros. How much do 12 pens cost, and how many can be bought for 10 euros? "
            "Explain each step."
        ],
        category="maths",
    ),
    PromptRecord(
        turns=[
            "Rewrite this note as a polite email, keeping every fact: Meeting moved to Friday 10:30, room 4. Bring the "
            "budget sheets and last month's figures. Anna can't come, Tom takes the minutes."
        ],
        category="rewriting",
    ),
    PromptRecord(turns=["Write a short story about a lighthouse keeper who finds a letter."], category="writing"),
)
