//! Streams: bytes that only grow, as segments of a journal do. A push reads what was added.

use std::io::{Read, Write};

use crate::chunker::DATA;
use crate::error::{Error, Result};
use crate::fetch::Fetch;
use crate::id::SnapshotId;
use crate::pack::Class;
use crate::sink::{Carried, Lane, Sink};
use crate::snapshot::Stream;
use crate::store::Store;

/// A last chunk shorter than this is read back and chunked again with what follows: many small appends would else leave
/// as many small chunks.
const SHORT: u32 = 256 << 10;

/// Pushes a stream: the first `from` bytes of what was there before, then the reader's.
pub(crate) fn push(
    sink: &Sink<'_>,
    fetch: &Fetch<'_>,
    name: &str,
    before: Option<(SnapshotId, &Stream)>,
    from: u64,
    reader: &mut dyn Read,
) -> Result<Stream> {
    let len = before.map_or(0, |(_, stream)| stream.len);
    if from > len {
        return Err(Error::Invalid(format!(
            "stream {name:?} has {len} bytes in the parent and cannot go on at {from}"
        )));
    }
    let (mut chunks, mut kept, mut tail) = (Vec::new(), 0, Vec::new());
    if let Some((id, stream)) = before {
        let fault = |fault: crate::fetch::Fault| fault.of(&id, name.as_bytes());
        let leaves = fetch.leaves(&stream.content, &mut |_| {}).map_err(fault)?;
        let mut places = Vec::new();
        for leaf in leaves {
            let place = fetch
                .place(&leaf)
                .map_err(|bad| fault(crate::fetch::Fault::Bad(bad)))?;
            let end = kept + u64::from(place.len);
            if end > from {
                if kept < from {
                    tail = fetch.chunk(&leaf).map_err(fault)?;
                    tail.truncate(usize::try_from(from - kept).unwrap_or(usize::MAX));
                }
                break;
            }
            places.push((leaf, place.len));
            kept = end;
        }
        while let Some((leaf, len)) = places.last().copied() {
            if len >= SHORT {
                break;
            }
            let mut bytes = fetch.chunk(&leaf).map_err(fault)?;
            bytes.append(&mut tail);
            tail = bytes;
            kept -= u64::from(len);
            places.pop();
        }
        chunks.extend(places.into_iter().map(|(leaf, _)| leaf));
    }
    let mut lane = Lane::new();
    let mut len = kept;
    let mut all = tail.as_slice().chain(reader);
    DATA.split(&mut all, &mut Vec::new(), |chunk| {
        len += chunk.len() as u64;
        chunks.push(sink.add_now(&mut lane, Class::Data, chunk)?);
        Ok::<(), Carried>(())
    })
    .map_err(|Carried(why)| why)?;
    let content = sink.listed(&mut lane, 0, chunks)?;
    sink.flush(&mut lane)?;
    Ok(Stream { len, content })
}

impl Store {
    /// Writes a snapshot's stream from an offset on. Returns how many bytes that were.
    ///
    /// # Errors
    ///
    /// [`Error::NoPart`] if there is no such stream, [`Error::Chunk`] if a part of it is damaged: what was written until
    /// then is right.
    pub fn pull_stream(
        &self,
        id: &SnapshotId,
        name: &str,
        from: u64,
        to: &mut dyn Write,
    ) -> Result<u64> {
        let snapshot = self.snapshot(id)?;
        let stream = snapshot.streams.get(name).ok_or_else(|| Error::NoPart {
            snapshot: *id,
            part: format!("stream {name:?}"),
        })?;
        let fetch = self.fetch()?;
        let fault = |fault: crate::fetch::Fault| fault.of(id, name.as_bytes());
        let (mut at, mut written) = (0u64, 0u64);
        for leaf in fetch.leaves(&stream.content, &mut |_| {}).map_err(fault)? {
            let place = fetch
                .place(&leaf)
                .map_err(|bad| fault(crate::fetch::Fault::Bad(bad)))?;
            let end = at + u64::from(place.len);
            if end > from {
                let bytes = fetch.chunk(&leaf).map_err(fault)?;
                let skip = usize::try_from(from.saturating_sub(at)).unwrap_or(usize::MAX);
                to.write_all(&bytes[skip..])
                    .map_err(Error::io("write", name))?;
                written += (bytes.len() - skip) as u64;
            }
            at = end;
        }
        if at != stream.len {
            return Err(Error::damaged(
                format!("stream {name} of snapshot {id}"),
                "it has another length",
            ));
        }
        Ok(written)
    }
}
