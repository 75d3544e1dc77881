// Requests to the dashboard's own server, and its live stream.

let session = null;

/** The answer to a GET. Throws an Error with the server's message if it refuses. */
export async function ask(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined);
  const words = new URLSearchParams(given).toString();
  return answer(await fetch(`/api/${path}${words ? `?${words}` : ""}`));
}

/** The session: the rights of this browser, and the token for changes. */
export async function rights() {
  session ??= await ask("session");
  return session;
}

/** Requests a change. Throws an Error with the server's message if it refuses. */
export async function change(path, body) {
  const { csrf, csrf_header } = await rights();
  const headers = { "Content-Type": "application/json", [csrf_header]: csrf };
  return answer(await fetch(`/api/${path}`, { method: "POST", headers, body: JSON.stringify(body) }));
}

async function answer(response) {
  let data = null;
  try {
    data = await response.json();
  } catch {
    throw new Error(`The dashboard answered with HTTP status ${response.status}.`);
  }
  if (!response.ok) throw new Error(data.error);
  return data;
}

/** Follows the live stream: calls `on.picture`, `on.event` and `on.offline`. The browser reconnects automatically. */
export function follow(on) {
  const source = new EventSource("/api/stream");
  for (const name of ["picture", "event", "offline"])
    source.addEventListener(name, (message) => on[name](JSON.parse(message.data)));
  source.addEventListener("error", () => on.offline({ why: "the dashboard's server does not answer" }));
  return source;
}
