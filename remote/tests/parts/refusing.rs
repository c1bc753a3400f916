//! Servers on the loopback that refuse every request, and end with the test's process.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

/// Serves each connection on a thread, and returns host and port.
pub(crate) fn serve(each: impl Fn(TcpStream) + Send + Sync + Copy + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        for stream in listener.incoming() {
            thread::spawn(move || each(stream.unwrap()));
        }
    });
    address
}

/// Answers an HTTP request with a status, headers and the text that `body` makes of the request's
/// head.
pub(crate) fn answer_http(stream: &TcpStream, status: u16, headers: &str, body: fn(&str) -> String) {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
    }
    let len = head
        .lines()
        .find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok());
    let _ = reader.read_exact(&mut vec![0; len.unwrap_or(0)]);
    let body = body(&head);
    let len = body.len();
    let mut stream = stream;
    let _ = write!(
        stream,
        "HTTP/1.1 {status} Said\r\n{headers}Content-Length: {len}\r\nConnection: close\r\n\r\n{body}"
    );
}

/// Refuses a client as PostgreSQL does. If the message contains `{password}`, the server asks for
/// the password and inserts it.
pub(crate) fn refuse_postgres(mut stream: &TcpStream, state: &str, message: &str) {
    let mut start = [0; 8];
    if stream.read_exact(&mut start).is_err() {
        return;
    }
    let (len, code) = start.split_at(4);
    if code == 80_877_103_u32.to_be_bytes() {
        let _ = stream.write_all(b"N");
        return refuse_postgres(stream, state, message);
    }
    let rest = u32::from_be_bytes(len.try_into().unwrap()) as usize - start.len();
    stream.read_exact(&mut vec![0; rest]).unwrap();
    let mut password = String::new();
    if message.contains("{password}") {
        stream.write_all(b"R\0\0\0\x08\0\0\0\x03").unwrap();
        let mut head = [0; 5];
        stream.read_exact(&mut head).unwrap();
        let mut text = vec![0; u32::from_be_bytes(head[1..].try_into().unwrap()) as usize - 4];
        stream.read_exact(&mut text).unwrap();
        password = String::from_utf8(text).unwrap().trim_end_matches('\0').to_owned();
    }
    let message = message.replace("{password}", &password);
    let fields = format!("SFATAL\0VFATAL\0C{state}\0M{message}\0\0");
    let len = u32::try_from(fields.len() + 4).unwrap().to_be_bytes();
    let _ = stream.write_all(&[b"E", len.as_slice(), fields.as_bytes()].concat());
}
