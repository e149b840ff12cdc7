//! The needles as one automaton (Aho and Corasick): after each byte it knows the longest beginning of a needle that the
//! bytes so far end with. That length is what a stream must hold back, which is why it is written here: no crate tells it.

use zeroize::Zeroize as _;

/// A node is the beginning of some needle; the root is the empty one.
#[derive(Clone, Copy)]
struct Node {
    /// The byte that leads here.
    byte: u8,
    /// The first of those one byte longer, and the next one beside this; 0 is none.
    child: u32,
    sibling: u32,
    /// The longest other beginning that this ends with.
    fallback: u32,
    /// How many bytes it is.
    depth: u32,
    /// The longest whole needle that it ends with, or 0.
    whole: u32,
}

const ROOT: u32 = 0;

/// A place in the automaton.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State(u32);

pub(super) struct Trie {
    nodes: Vec<Node>,
    /// Where each byte leads from the root.
    first: Box<[u32; 256]>,
    /// Which two bytes some needle begins with, a bit for each: nearly all bytes are passed over with this alone.
    pairs: Box<[u64; 1024]>,
}

impl Trie {
    pub(super) fn new() -> Self {
        Self {
            nodes: vec![Node {
                byte: 0,
                child: 0,
                sibling: 0,
                fallback: ROOT,
                depth: 0,
                whole: 0,
            }],
            first: Box::new([ROOT; 256]),
            pairs: Box::new([0; 1024]),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.len() == 1
    }

    /// Adds a needle of at least two bytes. [`link`](Self::link) comes after the last one.
    pub(super) fn add(&mut self, needle: &[u8]) {
        if let [one, two, ..] = needle {
            let (word, bit) = pair(*one, *two);
            self.pairs[word] |= bit;
        }
        let mut at = ROOT;
        for &byte in needle {
            at = match self.child(at, byte) {
                Some(child) => child,
                None => self.grow(at, byte),
            };
        }
        let node = &mut self.nodes[at as usize];
        node.whole = node.depth;
    }

    /// Works out what each node falls back to, the shorter ones first.
    pub(super) fn link(&mut self) {
        let mut level: Vec<u32> = self.children(ROOT).collect();
        while !level.is_empty() {
            let mut deeper = Vec::new();
            for parent in level {
                let children: Vec<u32> = self.children(parent).collect();
                for &child in &children {
                    let byte = self.nodes[child as usize].byte;
                    let fallback = self.step(self.nodes[parent as usize].fallback, byte);
                    let shorter = self.nodes[fallback as usize].whole;
                    let node = &mut self.nodes[child as usize];
                    node.fallback = fallback;
                    node.whole = node.whole.max(shorter);
                }
                deeper.extend(children);
            }
            level = deeper;
        }
    }

    pub(super) fn start(&self) -> State {
        State(ROOT)
    }

    /// Goes on over some bytes. Told is where each needle ends among them, and how long it is, the longest that ends there.
    pub(super) fn run(
        &self,
        state: State,
        bytes: &[u8],
        mut found: impl FnMut(usize, usize),
    ) -> State {
        let (State(mut state), mut at) = (state, 0);
        while at < bytes.len() {
            if state == ROOT {
                at += self.first_that_may_begin(&bytes[at..]);
                let Some(&byte) = bytes.get(at) else {
                    break;
                };
                state = self.first[usize::from(byte)];
            } else {
                state = self.step(state, bytes[at]);
            }
            at += 1;
            let whole = self.nodes[state as usize].whole;
            if whole > 0 {
                found(at, whole as usize);
            }
        }
        State(state)
    }

    /// Returns how many bytes no needle begins at; of the last one alone its second byte is not known.
    fn first_that_may_begin(&self, bytes: &[u8]) -> usize {
        let begins = |two: &[u8]| {
            let (word, bit) = pair(two[0], two[1]);
            self.pairs[word] & bit != 0
        };
        let last = bytes.len().saturating_sub(1);
        bytes.windows(2).position(begins).unwrap_or(last)
    }

    /// Returns how many of the last bytes may go on to be a needle.
    pub(super) fn open(&self, state: State) -> usize {
        self.nodes[state.0 as usize].depth as usize
    }

    fn step(&self, mut at: u32, byte: u8) -> u32 {
        while at != ROOT {
            if let Some(child) = self.child(at, byte) {
                return child;
            }
            at = self.nodes[at as usize].fallback;
        }
        self.first[usize::from(byte)]
    }

    fn child(&self, at: u32, byte: u8) -> Option<u32> {
        if at == ROOT {
            return Some(self.first[usize::from(byte)]).filter(|&child| child != ROOT);
        }
        self.children(at)
            .find(|&child| self.nodes[child as usize].byte == byte)
    }

    fn children(&self, at: u32) -> impl Iterator<Item = u32> {
        let some = |node: u32| Some(node).filter(|&node| node != ROOT);
        std::iter::successors(some(self.nodes[at as usize].child), move |&child| {
            some(self.nodes[child as usize].sibling)
        })
    }

    fn grow(&mut self, at: u32, byte: u8) -> u32 {
        let new = u32::try_from(self.nodes.len()).expect("needles are far shorter than 4 GiB");
        let parent = &mut self.nodes[at as usize];
        let node = Node {
            byte,
            child: 0,
            sibling: parent.child,
            fallback: ROOT,
            depth: parent.depth + 1,
            whole: 0,
        };
        parent.child = new;
        self.nodes.push(node);
        if at == ROOT {
            self.first[usize::from(byte)] = new;
        }
        new
    }
}

/// Returns where the bit of two bytes is.
fn pair(one: u8, two: u8) -> (usize, u64) {
    let bit = usize::from(one) << 8 | usize::from(two);
    (bit / 64, 1 << (bit % 64))
}

/// The nodes spell the values out, and the pairs how they begin.
impl Drop for Trie {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            node.byte.zeroize();
        }
        self.pairs.zeroize();
    }
}
