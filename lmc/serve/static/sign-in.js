$('form').onsubmit = async event => {
  event.preventDefault();
  try {
    await ask('/login', {key: $('key').value});
    location.reload();
  } catch (error) { said(error instanceof TypeError ? 'The server does not answer.' : String(error.message)); $('key').select(); }
};
