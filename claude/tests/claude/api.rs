//! A Messages API on loopback that streams scripted answers to the real program.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use serde_json::{Value, json};

/// The API's answer to a request.
#[derive(Clone, Debug)]
pub(crate) enum Answers {
    /// Content blocks: texts and calls of tools.
    With(Vec<Value>),
    /// A failure with this status.
    Fails(u16),
    /// The first half of an answer, and then the connection ends.
    Cut(Vec<Value>),
    /// All blocks of an answer, and then the connection ends before the end of the answer.
    Unended(Vec<Value>),
}

pub(crate) fn text(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

pub(crate) fn call(id: &str, name: &str, input: &Value) -> Value {
    json!({"type": "tool_use", "id": id, "name": name, "input": input})
}

type Script = dyn Fn(&Value, usize) -> Answers + Send + Sync;

#[derive(Default)]
struct Shared {
    seen: Mutex<Vec<Value>>,
    stopped: AtomicBool,
}

/// An API that runs until it is dropped.
pub(crate) struct Api {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Api {
    /// Starts an API that asks `script` for the answer to each request to the model, counted from
    /// 0. Requests without tools, which the program sends for titles and the like, get a text.
    pub(crate) fn start(script: impl Fn(&Value, usize) -> Answers + Send + Sync + 'static) -> Api {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let (of_thread, script): (_, Arc<Script>) = (Arc::clone(&shared), Arc::new(script));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if of_thread.stopped.load(Ordering::SeqCst) {
                    break;
                }
                let (shared, script) = (Arc::clone(&of_thread), Arc::clone(&script));
                std::thread::spawn(move || drop(serve(stream.unwrap(), &shared, &*script)));
            }
        });
        Api { address, shared, thread: Some(thread) }
    }

    /// Starts an API that gives these answers in order, and then repeats the last one.
    pub(crate) fn answering(answers: Vec<Answers>) -> Api {
        Api::start(move |_, number| answers[number.min(answers.len() - 1)].clone())
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn seen(&self) -> Vec<Value> {
        self.shared.seen.lock().unwrap().clone()
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

fn serve(stream: TcpStream, shared: &Shared, script: &Script) -> std::io::Result<()> {
    let mut out = stream.try_clone()?;
    let mut input = BufReader::new(stream);
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        if input.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length: ") {
            length = value.trim().parse().unwrap_or_default();
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body)?;
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let first = head.lines().next().unwrap_or_default().to_owned();
    if !first.starts_with("POST /v1/messages") || first.contains("count_tokens") {
        return reply(
            &mut out,
            404,
            &json!({"type": "error", "error": {"type": "not_found_error", "message": "no"}}),
        );
    }
    let is_aside = body.get("tools").and_then(Value::as_array).is_none_or(Vec::is_empty)
        && body.get("model").and_then(Value::as_str).is_some_and(|model| model.contains("haiku"));
    let answers = if is_aside {
        Answers::With(vec![text("aside")])
    } else {
        let number = {
            let mut seen = shared.seen.lock().unwrap();
            seen.push(body.clone());
            seen.len() - 1
        };
        script(&body, number)
    };
    match answers {
        // After a stream that was cut, the program asks for an answer in one piece.
        Answers::With(blocks) if body["stream"] != true => reply(&mut out, 200, &whole(&blocks)),
        Answers::With(blocks) => {
            out.write_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n",
            )?;
            events(&blocks).iter().try_for_each(|event| write_event(&mut out, event))
        }
        Answers::Cut(ref blocks) | Answers::Unended(ref blocks) => {
            out.write_all(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n",
            )?;
            let events = events(blocks);
            // The last two events report the end of the answer and its reason.
            let sent = if matches!(answers, Answers::Cut(_)) { events.len() / 2 } else { events.len() - 2 };
            events.iter().take(sent).try_for_each(|event| write_event(&mut out, event))
        }
        Answers::Fails(status) => {
            let error = json!({"type": "error", "error": {"type": "api_error", "message": format!("status {status}")}});
            reply(&mut out, status, &error)
        }
    }
}

fn reply(out: &mut TcpStream, status: u16, body: &Value) -> std::io::Result<()> {
    let body = body.to_string();
    let head = format!(
        "HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    out.write_all(head.as_bytes())?;
    out.write_all(body.as_bytes())
}

fn write_event(out: &mut TcpStream, event: &Value) -> std::io::Result<()> {
    let kind = event["type"].as_str().unwrap_or_default();
    out.write_all(format!("event: {kind}\ndata: {event}\n\n").as_bytes())
}

/// Returns an answer in one piece.
fn whole(blocks: &[Value]) -> Value {
    static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    let id = format!("msg_{}", NUMBER.fetch_add(1, Ordering::SeqCst));
    json!({
        "id": id, "type": "message", "role": "assistant", "model": "claude-sonnet-4-20250514", "content": blocks,
        "stop_reason": stop_reason(blocks), "stop_sequence": null, "usage": {"input_tokens": 100, "output_tokens": 20},
    })
}

fn stop_reason(blocks: &[Value]) -> &'static str {
    if blocks.iter().any(|block| block["type"] == "tool_use") { "tool_use" } else { "end_turn" }
}

/// Returns the events that stream an answer.
fn events(blocks: &[Value]) -> Vec<Value> {
    let mut begun = whole(blocks);
    begun["content"] = json!([]);
    begun["stop_reason"] = Value::Null;
    begun["usage"]["output_tokens"] = json!(1);
    let mut events = vec![json!({"type": "message_start", "message": begun})];
    for (index, block) in blocks.iter().enumerate() {
        let is_call = block["type"] == "tool_use";
        let (empty, delta) = if is_call {
            let mut empty = block.clone();
            empty["input"] = json!({});
            (empty, json!({"type": "input_json_delta", "partial_json": block["input"].to_string()}))
        } else {
            (json!({"type": "text", "text": ""}), json!({"type": "text_delta", "text": block["text"]}))
        };
        events.push(json!({"type": "content_block_start", "index": index, "content_block": empty}));
        events.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        events.push(json!({"type": "content_block_stop", "index": index}));
    }
    events.push(json!({"type": "message_delta", "delta": {"stop_reason": stop_reason(blocks), "stop_sequence": null}, "usage": {"output_tokens": 20}}));
    events.push(json!({"type": "message_stop"}));
    events
}
