"""DSPy, tutorial "Extracting information from emails": classify, extract, summarize, list what is to be done. Its loop over samples is a module here."""

from typing import Literal

import dspy

Kind = Literal["order_confirmation", "support_request", "meeting_invitation", "other"]


class ClassifyEmail(dspy.Signature):
    """Classify the type and urgency of an email based on its content."""

    email_subject: str = dspy.InputField()
    email_body: str = dspy.InputField()
    sender: str = dspy.InputField()
    email_type: Kind = dspy.OutputField()
    urgency: Literal["low", "medium", "high"] = dspy.OutputField()


class ExtractEntities(dspy.Signature):
    """Extract key entities and information from email content."""

    email_content: str = dspy.InputField()
    email_type: Kind = dspy.InputField()
    key_entities: list[str] = dspy.OutputField()
    important_dates: list[str] = dspy.OutputField()


class SummarizeEmail(dspy.Signature):
    """Create a concise summary of the email content."""

    email_subject: str = dspy.InputField()
    email_body: str = dspy.InputField()
    key_entities: list[str] = dspy.InputField()
    summary: str = dspy.OutputField()


class GenerateActionItems(dspy.Signature):
    """Determine what actions are needed based on the email content and extracted information."""

    email_type: Kind = dspy.InputField()
    urgency: str = dspy.InputField()
    email_summary: str = dspy.InputField()
    action_required: bool = dspy.OutputField()
    action_items: list[str] = dspy.OutputField()


class EmailProcessor(dspy.Module):
    def __init__(self):
        super().__init__()
        self.classifier = dspy.ChainOfThought(ClassifyEmail)
        self.entity_extractor = dspy.ChainOfThought(ExtractEntities)
        self.summarizer = dspy.ChainOfThought(SummarizeEmail)
        self.action_generator = dspy.ChainOfThought(GenerateActionItems)

    def forward(self, email_subject, email_body, sender):
        classification = self.classifier(email_subject=email_subject, email_body=email_body, sender=sender)
        full_content = f"Subject: {email_subject}\n\nFrom: {sender}\n\n{email_body}"
        entities = self.entity_extractor(email_content=full_content, email_type=classification.email_type)
        summary = self.summarizer(email_subject=email_subject, email_body=email_body, key_entities=entities.key_entities)
        actions = self.action_generator(email_type=classification.email_type, urgency=classification.urgency, email_summary=summary.summary)
        return dspy.Prediction(email_type=classification.email_type, dates=entities.important_dates, summary=summary.summary, actions=actions.action_items)


SAMPLE_EMAILS = [
    {"email_subject": "Order Confirmation #12345", "email_body": "Thank you for your order! It will ship on December 15.", "sender": "orders@shop.example"},
    {"email_subject": "URGENT: Server Outage", "email_body": "Our main server is down since 9 this morning. Please assist.", "sender": "admin@company.example"},
    {
        "email_subject": "Team Meeting",
        "email_body": "You are invited to our weekly meeting on Friday, December 20, at 2 pm.",
        "sender": "manager@company.example",
    },
]


class Demo(dspy.Module):
    def __init__(self):
        super().__init__()
        self.processor = EmailProcessor()

    def forward(self, emails):
        results = []
        for email in emails:
            result = self.processor(email_subject=email["email_subject"], email_body=email["email_body"], sender=email["sender"])
            results.append([result.email_type, result.dates, result.summary, result.actions])
        return results


def main(url):
    lm = dspy.LM("openai/m", api_base=f"{url}/v1", api_key="none", temperature=0, max_tokens=1000, cache=False)
    demo = Demo()
    with dspy.context(lm=lm):
        return demo(emails=SAMPLE_EMAILS)
