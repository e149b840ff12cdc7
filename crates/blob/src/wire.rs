//! The byte-level codec of everything that is stored: variable-length numbers and length-prefixed bytes.
//! Reading trusts nothing: what does not fit is a [`Malformed`], never a panic and never a large allocation.

/// Bytes that are not what the format says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed: {0}")]
pub(crate) struct Malformed(pub(crate) &'static str);

/// Appends a number in groups of seven bits, lowest first.
pub(crate) fn put_num(to: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = number.to_le_bytes()[0] & 0x7f;
        number >>= 7;
        if number == 0 {
            to.push(low);
            return;
        }
        to.push(low | 0x80);
    }
}

/// Appends a signed number, small magnitudes short.
pub(crate) fn put_signed(to: &mut Vec<u8>, number: i64) {
    put_num(
        to,
        (number.cast_unsigned() << 1) ^ (number >> 63).cast_unsigned(),
    );
}

/// Appends bytes with their length before them.
pub(crate) fn put_bytes(to: &mut Vec<u8>, bytes: &[u8]) {
    put_len(to, bytes.len());
    to.extend_from_slice(bytes);
}

/// Appends a count of things in memory.
pub(crate) fn put_len(to: &mut Vec<u8>, len: usize) {
    put_num(to, len as u64);
}

/// Reads from the front of a slice.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Malformed("cut short"))?;
        self.0 = rest;
        Ok(head)
    }

    pub(crate) fn byte(&mut self) -> Result<u8, Malformed> {
        let (&first, rest) = self.0.split_first().ok_or(Malformed("cut short"))?;
        self.0 = rest;
        Ok(first)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Malformed("cut short"))?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn num(&mut self) -> Result<u64, Malformed> {
        let mut number = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            number |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(Malformed("a number too large"))
    }

    pub(crate) fn signed(&mut self) -> Result<i64, Malformed> {
        let raw = self.num()?;
        Ok((raw >> 1).cast_signed() ^ -((raw & 1).cast_signed()))
    }

    pub(crate) fn num32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.num()?).map_err(|_| Malformed("a number too large"))
    }

    /// Reads a count of things that take at least `each` bytes, so that a wrong one cannot ask for much memory.
    pub(crate) fn count(&mut self, each: usize) -> Result<usize, Malformed> {
        let count = usize::try_from(self.num()?).map_err(|_| Malformed("a number too large"))?;
        if count > self.0.len() / each.max(1) {
            return Err(Malformed("a count beyond the end"));
        }
        Ok(count)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.count(1)?;
        self.take(len)
    }
}
