let description = null;

const resolved = schema => schema && schema.$ref ? resolved(description.components.schemas[schema.$ref.split('/').pop()]) : schema || {};

function kind(schema) {
  if (schema.$ref) return schema.$ref.split('/').pop();
  if (schema.const !== undefined) return JSON.stringify(schema.const);
  if (schema.enum) return schema.enum.map(x => JSON.stringify(x)).join(' | ');
  const any = schema.anyOf || schema.oneOf;
  if (any) return [...new Set(any.map(kind))].join(' | ');
  if (schema.type === 'array') return `list of ${schema.items ? kind(schema.items) : 'anything'}`;
  return Array.isArray(schema.type) ? schema.type.join(' | ') : schema.type || 'anything';
}

/* A value that a schema allows, as small as can be. */
function example(given, depth = 0) {
  const schema = resolved(given);
  if (schema.examples) return schema.examples[0];
  if (schema.default !== undefined && schema.default !== null) return schema.default;
  if (schema.const !== undefined) return schema.const;
  if (schema.enum) return schema.enum[0];
  const any = schema.anyOf || schema.oneOf;
  if (any) return example(any.find(x => x.type !== 'null') || any[0], depth);
  switch (Array.isArray(schema.type) ? schema.type[0] : schema.type) {
    case 'object': return Object.fromEntries((depth > 4 ? [] : schema.required || []).map(name => [name, example((schema.properties || {})[name], depth + 1)]));
    case 'array': return schema.items && depth < 4 ? [example(schema.items, depth + 1)] : [];
    case 'integer': case 'number': return schema.minimum || 1;
    case 'boolean': return false;
    case 'string': return 'Hello';
    default: return schema.properties ? example({...schema, type: 'object'}, depth) : 'Hello';
  }
}

function body(path, schema) {
  const made = example(schema);
  if (made && made.messages !== undefined) made.messages = [{role: 'user', content: 'Hello'}];
  if (made && 'model' in made) made.model = $('models').textContent || made.model;
  if (made && /completions|messages/.test(path)) made.max_tokens = 16;
  return JSON.stringify(made, null, 2);
}

function fields(schema) {
  const found = resolved(schema), names = Object.keys(found.properties || {}), frame = make('div', '', 'scroll'), made = make('table', '', 'small fields');
  if (!names.length) return make('p', kind(schema), 'quiet');
  const required = new Set(found.required || []);
  names.sort((a, b) => required.has(b) - required.has(a));
  for (const name of names) {
    const row = make('tr'), what = make('td'), own = found.properties[name];
    const label = make('td', '', 'code');
    label.append(make('b', name), required.has(name) ? ' *' : '');
    what.append(make('span', kind(own), 'quiet code'), own.description ? ' ' + own.description : '');
    row.append(label, what);
    made.append(row);
  }
  frame.tabIndex = 0;
  frame.append(made);
  return frame;
}

function operation(path, method, own) {
  const box = make('details', '', 'card operation'), head = make('summary');
  head.append(make('b', method.toUpperCase(), 'method ' + method), ' ', make('code', path), ' ', make('span', own.summary || '', 'quiet'));
  box.append(head);
  box.addEventListener('toggle', () => { if (box.open && !box.dataset.filled) { box.dataset.filled = 'yes'; fill(box, path, method, own) } });
  return box;
}

function fill(box, path, method, own) {
  const content = own.requestBody && own.requestBody.content['application/json'], inputs = [];
  if (own.description) box.append(make('p', own.description));
  for (const parameter of own.parameters || []) {
    const line = make('p'), label = make('label', `${parameter.name}${parameter.in === 'path' || parameter.required ? ' *' : ''} `), input = make('input');
    input.placeholder = kind(parameter.schema || {});
    if (parameter.name === 'model') input.value = $('models').textContent;
    label.append(input);
    line.append(label, ' ', make('span', parameter.description || '', 'quiet'));
    inputs.push([parameter, input]);
    box.append(line);
  }
  const text = make('textarea');
  if (content) {
    const folded = make('details'), name = make('summary', 'Fields of the body');
    folded.append(name, fields(content.schema));
    text.value = body(path, content.schema);
    text.rows = Math.min(14, text.value.split('\n').length + 1);
    text.setAttribute('aria-label', 'Body of ' + path);
    text.spellcheck = false;
    box.append(folded, text);
  }
  const send = make('button', 'Send'), status = make('span', '', 'quiet'), answer = make('pre', '', 'answer'), curl = make('pre', '', 'quiet curl'), row = make('div', '', 'tools');
  status.setAttribute('role', 'status');
  row.append(send, status);
  box.append(row, answer, curl);
  const url = () => {
    const query = new URLSearchParams();
    let at = path;
    for (const [parameter, input] of inputs) {
      if (parameter.in === 'path') at = at.replace(`{${parameter.name}}`, encodeURIComponent(input.value));
      else if (input.value) query.set(parameter.name, input.value);
    }
    return at + (query.size ? '?' + query : '');
  };
  const line = () => {
    const quoted = x => `'${x.replaceAll("'", `'\\''`)}'`, key = description.security ? ` -H ${quoted('Authorization: Bearer ')}"$KEY"` : '';
    curl.textContent = `curl ${quoted(location.origin + url())}${key}` + (content ? ` -H 'Content-Type: application/json' -d ${quoted(text.value)}` : '');
  };
  for (const field of [text, ...inputs.map(([, input]) => input)]) field.addEventListener('input', line);
  line();
  send.onclick = async () => {
    send.disabled = true;
    answer.hidden = false;
    answer.textContent = '';
    status.textContent = '…';
    const began = performance.now();
    try {
      const how = content ? {method: method.toUpperCase(), headers: {'Content-Type': 'application/json'}, body: text.value} : {method: method.toUpperCase()};
      const got = await fetch(url(), how), reader = got.body.getReader(), decoder = new TextDecoder();
      for (let part = await reader.read(); !part.done; part = await reader.read()) answer.textContent += decoder.decode(part.value, {stream: true});
      if ((got.headers.get('content-type') || '').includes('json')) answer.textContent = JSON.stringify(JSON.parse(answer.textContent), null, 2);
      status.textContent = `${got.status} in ${duration((performance.now() - began) / 1000)}`;
    } catch (error) { status.textContent = String(error.message); }
    send.disabled = false;
  };
}

function group(path) {
  const [, first, second] = path.split('/');
  return first === 'programs' ? 'Program ' + second : first === 'v1' ? 'Models' : 'Server';
}

async function show() {
  try {
    description = await ask('/openapi.json');
    $('models').textContent = (await ask('/')).models[0] || '';
    said('');
  } catch (error) { return said(String(error.message)); }
  const groups = new Map();
  for (const [path, methods] of Object.entries(description.paths))
    for (const [method, own] of Object.entries(methods)) {
      const name = group(path);
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(operation(path, method, own));
    }
  const order = [...groups].sort(([a], [b]) => (a === 'Server') - (b === 'Server') || (a === 'Models') - (b === 'Models'));
  $('found').replaceChildren(...order.flatMap(([name, operations]) => [make('h2', name), ...operations]));
}
$('search').oninput = () => {
  const wanted = $('search').value.trim().toLowerCase();
  for (const each of document.querySelectorAll('.operation')) each.hidden = !each.querySelector('summary').textContent.toLowerCase().includes(wanted);
};
addEventListener('keydown', event => {
  if (event.key === '/' && !/^(INPUT|TEXTAREA)$/.test(event.target.tagName)) { event.preventDefault(); $('search').focus() }
});
show();
