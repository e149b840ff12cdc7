//! `durable cat`

use std::process::ExitCode;

use http_body_util::{BodyExt as _, Empty};
use hyper::Method;
use hyper::header::ETAG;
use protocol::{ApiError, ErrorCode};

use super::inside::Inside;
use super::{Outcome, World};
use crate::stream;

/// How often a broken answer is taken up again without a byte of progress.
const TRIES: u32 = 3;

/// Print the exact bytes of a file in a sandbox, or of a part of it.
///
/// Reading is no operation: nothing is journaled or spooled. A stopped sandbox is started for it.
///
/// Example: durable cat ada notes.md --range 0-99
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct Args {
    #[command(flatten)]
    inside: Inside,
    /// The first and the last byte, counted from 0: `A-B`, `A-` to the end, `-N` for the last N.
    #[arg(long, value_name = "A-B", conflicts_with_all = ["offset", "length"], allow_hyphen_values = true)]
    range: Option<String>,
    /// The first byte.
    #[arg(long, value_name = "BYTE")]
    offset: Option<u64>,
    /// How many bytes at most.
    #[arg(long, value_name = "BYTES")]
    length: Option<u64>,
}

pub(crate) async fn run(args: Args, world: &World) -> Outcome {
    let address = args.inside.address("")?;
    let mut range = range(&args)?;
    if args.length == Some(0) {
        return Ok(ExitCode::SUCCESS);
    }
    let mut tag: Option<String> = None;
    let mut tries = 0;
    loop {
        let mut headers = Vec::new();
        if let Some(range) = &range {
            headers.push(("range", range.as_str()));
        }
        if let Some(tag) = &tag {
            headers.push(("if-match", tag.as_str()));
        }
        let ask = || {
            let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
            world
                .client
                .send_with(Method::GET, &address, &headers, body)
        };
        let response = crate::again::retry_broken(ask).await?;
        let header = |name| response.headers().get(name)?.to_str().ok();
        tag = header(ETAG).map(str::to_owned);
        let (mut next, end) = span(
            header(hyper::header::CONTENT_RANGE),
            header(hyper::header::CONTENT_LENGTH),
        );
        let mut body = response.into_body();
        let broken = loop {
            match body.frame().await {
                None => return Ok(ExitCode::SUCCESS),
                // A daemon that is killed loses nothing: the next one is asked for the rest of the same content.
                Some(Err(error)) => break error,
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        stream::write(0, &data)?;
                        next += data.len() as u64;
                        tries = 0;
                    }
                }
            }
        };
        tries += 1;
        if tries > TRIES || end <= next {
            return Err(ApiError::new(
                ErrorCode::Unavailable,
                format!("the file could not be read past byte {next}: {broken}"),
            )
            .hint("it may have become shorter meanwhile"));
        }
        range = Some(format!("bytes={next}-{}", end - 1));
    }
}

/// Where an answer begins and ends in the file.
fn span(range: Option<&str>, length: Option<&str>) -> (u64, u64) {
    let of_range = range.and_then(|range| {
        let (span, _) = range.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = span.split_once('-')?;
        let last: u64 = last.parse().ok()?;
        Some((first.parse().ok()?, last + 1))
    });
    let whole = || (0, length.and_then(|l| l.parse().ok()).unwrap_or(0));
    of_range.unwrap_or_else(whole)
}

fn range(args: &Args) -> Result<Option<String>, ApiError> {
    if let Some(range) = &args.range {
        let number = |text: &str| text.parse::<u64>().ok();
        let is_good = match range.split_once('-') {
            Some(("", last)) => number(last).is_some(),
            Some((first, "")) => number(first).is_some(),
            Some((first, last)) => {
                matches!((number(first), number(last)), (Some(a), Some(b)) if a <= b)
            }
            None => false,
        };
        if !is_good {
            let words = format!("`--range {range}` is no range of bytes");
            return Err(ApiError::new(ErrorCode::Invalid, words).hint("write A-B, A- or -N"));
        }
        return Ok(Some(format!("bytes={range}")));
    }
    let offset = args.offset.unwrap_or(0);
    Ok(match args.length {
        // An empty file has no byte 0: all of it is asked for then.
        None if offset == 0 => None,
        None => Some(format!("bytes={offset}-")),
        Some(length) => {
            let last = offset.saturating_add(length.saturating_sub(1));
            Some(format!("bytes={offset}-{last}"))
        }
    })
}
