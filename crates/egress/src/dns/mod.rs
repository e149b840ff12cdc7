//! Names inside the sandbox, answered from nothing but the question. Nothing is ever asked outside for them.

mod message;
mod names;
mod tcp;
mod udp;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use policy::Host;

pub(crate) use names::Names;
pub(crate) use tcp::serve_tcp;
pub(crate) use udp::serve_udp;

use message::{Kind, Question, Reply};

/// Longest query that is looked at; resolvers send a few dozen bytes.
const MAX_QUERY: usize = 4096;

/// Gives names their addresses: the part of DNS that needs no socket.
#[derive(Debug, Default)]
pub struct Answerer {
    names: Names,
}

impl Answerer {
    /// Returns the name that was given an address, where one was.
    #[must_use]
    pub fn name_of(&self, address: IpAddr) -> Option<Host> {
        self.names.name_of(address)
    }

    pub(crate) fn address_of(&self, name: &str, v6: bool) -> Option<IpAddr> {
        self.names.address_of(name, v6)
    }
}

/// Returns the answer to one query, as bytes of DNS; none where it must not be answered.
#[must_use]
pub fn answer_dns(answerer: &Answerer, query: &[u8]) -> Option<Vec<u8>> {
    let header = message::header(query)?;
    if header.opcode != 0 {
        return Some(header.failed(message::NOT_IMPLEMENTED));
    }
    let Ok(question) = message::question(query) else {
        return Some(header.failed(message::FORMAT_ERROR));
    };
    Some(reply(answerer, &question).encode(&header, &question))
}

fn reply(answerer: &Answerer, question: &Question<'_>) -> Reply {
    let host = match Host::parse(&question.name) {
        Ok(Host::Name(name)) => name,
        Ok(Host::Ip(_)) | Err(_) => return Reply::NoSuchName,
    };
    if host == "localhost" || host.ends_with(".localhost") {
        return match question.kind {
            Kind::V4 => Reply::Address(IpAddr::V4(Ipv4Addr::LOCALHOST)),
            Kind::V6 => Reply::Address(IpAddr::V6(Ipv6Addr::LOCALHOST)),
            Kind::Other => Reply::Nothing,
        };
    }
    let found = match question.kind {
        Kind::V4 => answerer.address_of(&host, false),
        Kind::V6 => answerer.address_of(&host, true),
        Kind::Other => None,
    };
    found.map_or(Reply::Nothing, Reply::Address)
}

#[cfg(test)]
mod tests;
