//! Names for what is not a capture that can be read, so that an error can say what to do.

/// Advice for captures in other formats.
pub(super) const CONVERT: &str = "convert it with `editcap -F pcapng IN OUT` (part of Wireshark)";
const TEXT: &str = "name the capture itself";
const UNPACK: &str = "unpack it first";
const HEX: &str = "if it is a hex dump of packets, convert it with `text2pcap IN OUT` (part of Wireshark)";
const UNKNOWN: &str = "if Wireshark opens it, convert it with `editcap -F pcapng IN OUT`";
const AGAIN: &str = "copy or download it again";

/// Bytes at the beginning that are examined.
pub(super) const LOOK: usize = 4096;

/// Formats by what they begin with: offset, bytes, name, advice.
const SIGNATURES: &[(usize, &[u8], &str, &str)] = &[
    (0, b"snoop\0\0\0", "a Solaris snoop capture", CONVERT),
    (0, b"btsnoop\0", "a Bluetooth btsnoop capture", CONVERT),
    (0, b"RTSS", "a Microsoft Network Monitor 1 capture", CONVERT),
    (0, b"GMBU", "a Microsoft Network Monitor 2 capture", CONVERT),
    (0, b"iptrace 1.0", "an AIX iptrace capture", CONVERT),
    (0, b"iptrace 2.0", "an AIX iptrace capture", CONVERT),
    (0, b"TRSNIFF data    \x1a", "a Sniffer capture", CONVERT),
    (0, b"XCP\0", "a Sniffer (NetXRay) capture", CONVERT),
    (0, b"VL\0\0", "a Sniffer (NetXRay) capture", CONVERT),
    (0, b"\xaa\xaa\xaa\xaa", "a 5View capture", CONVERT),
    (0, b"\x05VNF", "a Visual Networks capture", CONVERT),
    (0, b"\x7fver", "an OmniPeek capture", CONVERT),
    (0, b"TR\0d\0", "an HP-UX nettl trace", CONVERT),
    (0, b"\xac\x01\0\x1c", "an Ixia capture", CONVERT),
    (0, b"\xab\x01\0\x1c", "an Ixia capture", CONVERT),
    (0, b"+---------+---------------+----------+", "a K12 text capture", CONVERT),
    (0, b"\0\0\x02\0\x12\x05\0\x10", "a Tektronix K12 capture", CONVERT),
    (0, b"\x0d\x0a\x0d\x0d\x0d\x0a", "a pcapng file that was copied as if it were text", AGAIN),
    (0, b"\x0a\x0d\x0a", "a pcapng file that was copied as if it were text", AGAIN),
    (0, b"\xfd7zXZ\0", "an xz file", UNPACK),
    (0, b"BZh", "a bzip2 file", UNPACK),
    (0, b"\x04\x22\x4d\x18", "an lz4 file", UNPACK),
    (0, b"\x1f\x9d", "a compress (.Z) file", UNPACK),
    (0, b"PK\x03\x04", "a zip archive", UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", UNPACK),
    (0, b"Rar!\x1a\x07", "a RAR archive", UNPACK),
    (257, b"ustar", "a tar archive", UNPACK),
    (0, b"\x7fELF", "an ELF program", TEXT),
    (0, b"MZ", "a Windows program", TEXT),
    (0, b"%PDF", "a PDF document", TEXT),
    (0, b"\x89PNG", "a PNG picture", TEXT),
    (0, b"PAR1", "a Parquet table", TEXT),
    (0, b"SQLite format 3\0", "an SQLite database", TEXT),
    (0, b"#!", "a shell script", TEXT),
    (0, b"SLIPPART", "a part of an analysis by slipstream", "join parts with `slipstream analyze merge`"),
    (0, b"SLIPMEAS", "a state saved by slipstream", "ask it with `slipstream measure query`"),
    (0, b"SLPPOLL1", "a poll log of slipstream", "hand it to `slipstream model fit`"),
    (0, b"SLPSTATE", "a state of `slipstream run --state`", TEXT),
    (0, b"version https://git-lfs", "a Git LFS pointer", "fetch the file with `git lfs pull`"),
];

/// The name of what begins with `begin`, and advice.
pub(super) fn name(begin: &[u8]) -> (String, String) {
    for &(at, bytes, name, advice) in SIGNATURES {
        if begin.get(at..).is_some_and(|rest| rest.starts_with(bytes)) {
            return (name.to_owned(), advice.to_owned());
        }
    }
    let (name, advice) = if begin.iter().all(|&byte| byte == 0) {
        ("nothing but zeros", AGAIN)
    } else if let Some(markup) = markup(begin) {
        (markup, TEXT)
    } else if text(begin) {
        ("text", HEX)
    } else if erf(begin) {
        ("an Endace ERF capture", CONVERT)
    } else {
        return (hex(begin), UNKNOWN.to_owned());
    };
    (name.to_owned(), advice.to_owned())
}

/// The first bytes as people write them.
fn hex(begin: &[u8]) -> String {
    let bytes: Vec<String> = begin.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    bytes.join(" ")
}

/// Markup and data formats that are text.
fn markup(begin: &[u8]) -> Option<&'static str> {
    let begin = begin.trim_ascii_start();
    let starts = |word: &[u8]| begin.get(..word.len()).is_some_and(|b| b.eq_ignore_ascii_case(word));
    if starts(b"<!doctype html") || starts(b"<html") {
        Some("an HTML page")
    } else if starts(b"<?xml") {
        Some("an XML document")
    } else if (starts(b"{") || starts(b"[")) && text(begin) {
        Some("a JSON document")
    } else {
        None
    }
}

/// Returns true if all is printable text in UTF-8; it may be cut within a character.
fn text(begin: &[u8]) -> bool {
    let valid = match std::str::from_utf8(begin) {
        Ok(text) => text,
        Err(error) if error.error_len().is_none() => begin
            .get(..error.valid_up_to())
            .and_then(|valid| std::str::from_utf8(valid).ok())
            .unwrap_or_default(),
        Err(_) => return false,
    };
    !valid.is_empty() && !valid.chars().any(|c| c.is_control() && !matches!(c, '\t' | '\n' | '\r'))
}

/// Returns true if two records, or all there is, look like those of Endace's Extensible Record Format, which
/// has no magic number: eight bytes of time, type (1 to 48, the top bit flags an extension), flags, record
/// length, loss counter, wire length.
fn erf(begin: &[u8]) -> bool {
    let mut rest = begin;
    let mut records = 0;
    while let Some(&[.., kind, _, rlen_hi, rlen_lo, _, _, wlen_hi, wlen_lo]) = rest.first_chunk::<16>() {
        let (rlen, wlen) = (u16::from_be_bytes([rlen_hi, rlen_lo]), u16::from_be_bytes([wlen_hi, wlen_lo]));
        if !matches!(kind & 0x7f, 1..=48) || rlen < 16 || (wlen == 0 && kind & 0x7f != 27) {
            return false;
        }
        records += 1;
        match rest.get(usize::from(rlen)..) {
            Some(next) => rest = next,
            None => return records > 1,
        }
    }
    records > 1 || (records == 1 && rest.is_empty())
}
