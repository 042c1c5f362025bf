"""The benchmark of certificates: gens are kept on the first backend until as many values are equal as wanted."""

import lmc
from benchmarks.bench_certify import Task, kept, tasks
from benchmarks.tickets import FIELDS, RIGHT, form, tickets

TICKETS = [ticket for ticket in tickets(200) if len(ticket.facts["mail"]) < 24][:10]  # a mock's token is a byte
FORM = Task(form, [{"text": ticket.text} for ticket in TICKETS], [RIGHT[form].format(**ticket.facts) for ticket in TICKETS])
FACTS = {"order": " {order}", "date": "{date}", "amount": "{amount}", "mail": " {mail}", "product": " {product}", "priority": " {priority}"}


def reads(*wrong):
    """A backend that reads a ticket's facts; those that are `wrong` from the ticket before."""

    def say(prompt, ask):
        ticket = next(ticket for ticket in TICKETS if f"Ticket: {ticket.text}" in prompt)
        if ask.name in wrong:
            ticket = TICKETS[TICKETS.index(ticket) - 1]
        return FACTS[ask.name].format(**ticket.facts)

    return lmc.Mock(say)


def test_a_form_has_all_fields():
    expected = RIGHT[form].format(**TICKETS[0].facts)
    assert len(FIELDS) == 6 and form.run(TICKETS[0].text, backend=reads()).ret_value == expected
    assert [task.program.name for task in tasks(2)][7] == "form"


def test_gens_that_differ_are_kept():
    plain, other = reads(), reads("date", "mail")
    found = lmc.certify(form, FORM.items, plain, other)
    assert found.values.equal == 0 and FORM.accuracy(found) == "100.0%, 0.0%"
    more = kept(FORM, found, plain, other, 0.97)
    assert more is not None and [site.name for site in more.sites] == ["date", "mail"]
    assert more.found.values.equal == 10 and FORM.accuracy(more.found) == "100.0%, 100.0%"
    assert more.calls == 4 / 6 and 0 < more.tokens < more.calls
    assert kept(FORM, more.found, plain, other, 0.97) is None
