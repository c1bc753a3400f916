//! A model behind the APIs of Codex (Responses) and Gemini CLI on loopback.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::{Value, json};

/// A call of a tool. Its input is a text for a tool that takes one.
pub(crate) type ToolCall = (&'static str, Value);

#[derive(Default)]
struct Shared {
    taught: Mutex<BTreeMap<String, Vec<ToolCall>>>,
    seen: Mutex<Vec<String>>,
    stopped: AtomicBool,
    calls: AtomicUsize,
}

/// A model that was taught which tools to use for a prompt, one after the other. Then it answers by
/// `done`, followed by the prompt.
pub(crate) struct Api {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Api {
    pub(crate) fn start() -> Api {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if of_thread.stopped.load(Ordering::SeqCst) {
                    break;
                }
                let shared = Arc::clone(&of_thread);
                std::thread::spawn(move || drop(serve(stream.unwrap(), &shared)));
            }
        });
        Api { address, shared, thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn teach(&self, prompt: &str, calls: Vec<ToolCall>) {
        self.shared.taught.lock().unwrap().insert(prompt.to_owned(), calls);
    }

    /// Returns true if a user's text in a request was this one.
    pub(crate) fn has_seen(&self, text: &str) -> bool {
        self.shared.seen.lock().unwrap().iter().any(|seen| seen.contains(text))
    }
}

impl Drop for Api {
    fn drop(&mut self) {
        self.shared.stopped.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

fn serve(stream: TcpStream, shared: &Shared) -> std::io::Result<()> {
    let mut out = stream.try_clone()?;
    let mut input = BufReader::new(stream);
    let (mut first, mut length) = (String::new(), 0);
    input.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap_or_default();
        }
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body)?;
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let (events, is_stream) = match () {
        () if first.contains("/responses") => (responses(&body, shared), true),
        () if first.contains("enerateContent") => (vec![content(&body, shared)], first.contains("stream")),
        () => (vec![json!({"error": {"message": "no"}})], false),
    };
    let kind = if is_stream { "text/event-stream" } else { "application/json" };
    write!(out, "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\nconnection: close\r\n\r\n")?;
    for event in events {
        match (is_stream, event["type"].as_str()) {
            (true, Some(kind)) => write!(out, "event: {kind}\ndata: {event}\n\n")?,
            (true, None) => write!(out, "data: {event}\n\n")?,
            (false, _) => write!(out, "{event}")?,
        }
    }
    Ok(())
}

/// What the model does next.
enum Next {
    Call(ToolCall),
    Text(String),
}

impl Shared {
    /// Returns the next step, after the texts of users (`Some`) and the results of tools (`None`).
    fn next(&self, inputs: impl Iterator<Item = Option<String>>) -> Next {
        let taught = self.taught.lock().unwrap();
        let mut last: Option<(&String, &Vec<ToolCall>, usize)> = None;
        let mut seen = self.seen.lock().unwrap();
        for input in inputs {
            match (input, &mut last) {
                (Some(text), _) => {
                    if let Some((prompt, calls)) = taught.get_key_value(text.trim()) {
                        last = Some((prompt, calls, 0));
                    }
                    seen.push(text);
                }
                (None, Some((_, _, results))) => *results += 1,
                (None, None) => {}
            }
        }
        let Some((prompt, calls, results)) = last else { return Next::Text("aside".to_owned()) };
        match calls.get(results) {
            Some(call) => Next::Call(call.clone()),
            None => Next::Text(format!("done: {prompt}")),
        }
    }
}

/// Returns the events of an answer to Codex.
fn responses(body: &Value, shared: &Shared) -> Vec<Value> {
    let items = body["input"].as_array().cloned().unwrap_or_default();
    let inputs = items.iter().flat_map(|item| match item["type"].as_str().unwrap_or_default() {
        "message" if item["role"] == "user" => {
            let blocks = item["content"].as_array().cloned().unwrap_or_default();
            blocks.iter().map(|block| block["text"].as_str().map(str::to_owned)).collect()
        }
        kind if kind.ends_with("_call_output") => vec![None],
        _ => Vec::new(),
    });
    let id = format!("call_{:04}", shared.calls.fetch_add(1, Ordering::SeqCst));
    // The program also asks for titles and the like, without tools.
    let next = match body["tools"].as_array().is_some_and(|tools| !tools.is_empty()) {
        true => shared.next(inputs),
        false => Next::Text("aside".to_owned()),
    };
    let item = match next {
        Next::Call((name, Value::String(text))) => {
            json!({"type": "custom_tool_call", "id": format!("ctc_{id}"), "call_id": id, "name": name, "input": text})
        }
        Next::Call((name, input)) => {
            json!({"type": "function_call", "id": format!("fc_{id}"), "call_id": id, "name": name, "arguments": input.to_string()})
        }
        Next::Text(text) => {
            json!({"type": "message", "role": "assistant", "id": format!("msg_{id}"), "content": [{"type": "output_text", "text": text}]})
        }
    };
    let usage = json!({"input_tokens": 1, "output_tokens": 1, "total_tokens": 2});
    vec![
        json!({"type": "response.created", "response": {"id": format!("resp_{id}")}}),
        json!({"type": "response.output_item.done", "output_index": 0, "item": item}),
        json!({"type": "response.completed", "response": {"id": format!("resp_{id}"), "usage": usage}}),
    ]
}

/// Returns an answer to Gemini CLI.
fn content(body: &Value, shared: &Shared) -> Value {
    let contents = body["contents"].as_array().cloned().unwrap_or_default();
    let parts = contents.iter().filter(|content| content["role"] == "user").flat_map(|content| {
        let parts = content["parts"].as_array().cloned().unwrap_or_default();
        parts.into_iter().filter_map(|part| match part["functionResponse"].is_null() {
            true => part["text"].as_str().map(|text| Some(text.to_owned())),
            false => Some(None),
        })
    });
    let next = match body["tools"].as_array().is_some_and(|tools| !tools.is_empty()) {
        true => shared.next(parts),
        false => Next::Text("{}".to_owned()),
    };
    let part = match next {
        Next::Call((name, args)) => json!({"functionCall": {"name": name, "args": args}}),
        Next::Text(text) => json!({"text": text}),
    };
    json!({
        "candidates": [{"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {"promptTokenCount": 1, "candidatesTokenCount": 1, "totalTokenCount": 2},
    })
}
