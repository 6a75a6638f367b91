//! Server-sent events: the `data` of each, from bytes that come in any pieces.

/// Splits a stream of bytes into events.
#[derive(Debug, Default)]
pub(super) struct Events {
    buffer: Vec<u8>,
}

impl Events {
    /// Takes in bytes and gives the data of every event that is now whole.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.buffer.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\n\n") {
            let event: Vec<u8> = self.buffer.drain(..end + 2).collect();
            let event = String::from_utf8_lossy(&event);
            events.extend(
                event
                    .lines()
                    .filter_map(|line| line.strip_prefix("data: "))
                    .map(str::to_owned),
            );
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_out_whole_however_the_bytes_come_in() {
        let stream = ": comment\n\ndata: {\"text\":\"\u{fc}\"}\n\ndata: [DONE]\n\n".as_bytes();
        for size in 1..stream.len() {
            let mut events = Events::default();
            let found: Vec<String> = stream
                .chunks(size)
                .flat_map(|bytes| events.push(bytes))
                .collect();
            assert_eq!(found, ["{\"text\":\"\u{fc}\"}", "[DONE]"]);
        }
    }
}
