//! As much of HTTP as Prometheus needs: one GET, one answer, and good-bye. Sans-IO: bytes in, bytes out.

/// A request's line and headers.
const REQUEST_MAX: usize = 8 * 1024;

/// The answer to a request, once all of it is there.
pub(crate) fn answer(request: &[u8], metrics: impl FnOnce() -> String) -> Option<Vec<u8>> {
    let plain = |status: &str, body: &str| reply(status, "text/plain; charset=utf-8", body);
    let whole =
        request.windows(4).any(|end| end == b"\r\n\r\n") || request.windows(2).any(|end| end == b"\n\n");
    if !whole {
        return (request.len() > REQUEST_MAX)
            .then(|| plain("431 Request Header Fields Too Large", "too long\n"));
    }
    let line = request.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    Some(match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            let mut whole = reply("200 OK", kind, &metrics());
            if method == b"HEAD" {
                let body =
                    whole.windows(4).position(|end| end == b"\r\n\r\n").map_or(whole.len(), |at| at + 4);
                whole.truncate(body);
            }
            whole
        }
        (b"GET" | b"HEAD", _) => plain("404 Not Found", "metrics are at /metrics\n"),
        _ => plain("405 Method Not Allowed", "GET /metrics\n"),
    })
}

fn reply(status: &str, kind: &str, body: &str) -> Vec<u8> {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::answer;

    fn status(request: &[u8]) -> Option<String> {
        let answer = answer(request, || "up 1\n".to_owned())?;
        Some(String::from_utf8(answer).unwrap().split("\r\n").next().unwrap().to_owned())
    }

    #[test]
    fn requests_are_answered_when_they_are_whole() {
        assert_eq!(status(b"GET /metrics HTTP/1.1\r\nHost: a\r\n"), None);
        assert_eq!(status(b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").unwrap(), "HTTP/1.1 200 OK");
        assert_eq!(status(b"GET /metrics?x=1 HTTP/1.0\n\n").unwrap(), "HTTP/1.1 200 OK");
        assert_eq!(status(b"GET / HTTP/1.1\r\n\r\n").unwrap(), "HTTP/1.1 404 Not Found");
        assert_eq!(status(b"POST /metrics HTTP/1.1\r\n\r\n").unwrap(), "HTTP/1.1 405 Method Not Allowed");
        assert_eq!(status(b"\r\n\r\n").unwrap(), "HTTP/1.1 405 Method Not Allowed");
        assert_eq!(status(&[b'x'; 9000]).unwrap(), "HTTP/1.1 431 Request Header Fields Too Large");
        let head = answer(b"HEAD /metrics HTTP/1.1\r\n\r\n", || "up 1\n".to_owned()).unwrap();
        assert!(head.ends_with(b"Content-Length: 5\r\nConnection: close\r\n\r\n"));
    }
}
