//! The name server of the fake internet, which keeps every name that it was asked for.

use std::collections::HashMap;
use std::net::{Ipv4Addr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::NOWHERE;
use crate::Res;

/// What is known of names: the answers to the first question, the second …; the last one stays.
pub type Zone = HashMap<String, Vec<Vec<Ipv4Addr>>>;

const TYPE_A: [u8; 2] = [0, 1];
const HEADER: usize = 12;

/// Answers for every name there is: one that nobody has leads to [`NOWHERE`].
#[derive(Clone)]
pub struct Names(Arc<Mutex<Vec<String>>>);

impl Names {
    pub(super) fn new(address: Ipv4Addr, mut zone: Zone) -> Res<Self> {
        let socket = UdpSocket::bind((address, 53))?;
        let names = Self(Arc::default());
        let log = names.clone();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok((length, client)) = socket.recv_from(&mut buffer) {
                if let Some(answer) = answer(&buffer[..length], &mut zone, &log) {
                    // Whoever asked may be gone.
                    let _sent = socket.send_to(&answer, client);
                }
            }
        });
        Ok(names)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns every name that was asked for, once for each address that was asked.
    #[must_use]
    pub fn asked(&self) -> Vec<String> {
        self.lock().clone()
    }
}

fn answer(query: &[u8], zone: &mut Zone, log: &Names) -> Option<Vec<u8>> {
    let (mut name, mut at) = (String::new(), HEADER);
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            break;
        }
        if !name.is_empty() {
            name.push('.');
        }
        name.push_str(&String::from_utf8_lossy(query.get(at..at + length)?));
        at += length;
    }
    let name = name.to_ascii_lowercase();
    let question = query.get(HEADER..at + 4)?;
    let found = if query.get(at..at + 2)? == TYPE_A {
        log.lock().push(name.clone());
        match zone.get_mut(&name) {
            Some(answers) if answers.len() > 1 => answers.remove(0),
            Some(answers) => answers.first().cloned().unwrap_or_default(),
            None => vec![NOWHERE],
        }
    } else {
        Vec::new()
    };
    let mut answer = query.get(..2)?.to_vec();
    answer.extend([
        0x81,
        0x80,
        0,
        1,
        0,
        u8::try_from(found.len()).ok()?,
        0,
        0,
        0,
        0,
    ]);
    answer.extend(question);
    for address in found {
        // The name of the question, an address of the internet, valid for no second, four bytes.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}
