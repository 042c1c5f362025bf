function question(program, run, asked) {
  const box = make('section', '', 'card'), text = make('textarea'), send = make('button', 'Answer');
  const schema = asked.schema ? JSON.parse(asked.schema) : null;
  box.append(make('div', `${program} · run ${run} · since ${new Date(asked.since * 1000).toLocaleString()}`, 'quiet'), make('h2', asked.question));
  const give = async answer => {
    box.querySelectorAll('button').forEach(b => { b.disabled = true });
    said('The run goes on …');
    try {
      const found = await ask(`/programs/${program}/runs/${run}/answers`, {answer, number: asked.number});
      await show();
      said(found.questions ? 'It has another question.' : 'It is over: ' + JSON.stringify(found.return_value));
    } catch (error) { await show(); said(String(error.message)); }
  };
  const choices = schema && (schema.type === 'boolean' ? [['Yes', true], ['No', false]] : Array.isArray(schema.enum) ? schema.enum.map(value => [String(value), value]) : null);
  if (choices) {
    const row = make('div', '', 'tools');
    for (const [name, value] of choices) { const b = make('button', name); b.onclick = () => give(value); row.append(b); }
    box.append(row);
  } else {
    text.setAttribute('aria-label', 'Answer to: ' + asked.question);
    if (schema) box.append(make('div', 'JSON: ' + asked.schema, 'quiet'));
    send.onclick = () => {
      try { give(schema ? JSON.parse(text.value) : text.value); } catch (error) { said(String(error.message)); }
    };
    box.append(text, send);
  }
  return box;
}

/* What no answer here helps: a call of which nobody knows whether it happened, a journal that cannot be read. */
const troubles = run => [...(run.in_doubt || []).map(call => `Nobody knows whether ${call} happened: lmc journal resolve says it`), ...(run.status === 'unreadable' ? [run.error] : [])];

function note(program, run, text) {
  const box = make('section', '', 'card');
  box.append(make('div', `${program} · run ${run}`, 'quiet'), make('p', text));
  return box;
}

const writing = () => [...document.querySelectorAll('textarea')].some(field => field.value || field === document.activeElement);
setInterval(() => { if (!document.hidden && !writing()) show() }, 5000);

async function show() {
  const found = $('found'), boxes = [];
  try {
    const {programs} = await ask('/runs/programs');
    for (const program of programs)
      for (const each of (await ask(`/programs/${program}/runs`)).runs)
        boxes.push(...each.questions.map(asked => question(program, each.run, asked)), ...troubles(each).map(text => note(program, each.run, text)));
    found.replaceChildren(...boxes);
    said(boxes.length ? '' : 'No run waits for an answer.');
  } catch (error) { found.replaceChildren(); said(String(error.message)); }
}
show();
