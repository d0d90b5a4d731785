//! Reading captures from memory: nanoseconds per record of 96 bytes, and what compression adds.
#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;
use std::io::{Cursor, Write};
use std::sync::{Arc, Mutex};

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use slipstream::io::capture::{CaptureReader, CaptureWriter, Compression, Format, Interface, WriterOptions};
use slipstream::time::Nanos;

const RECORDS: u64 = 10_000;

/// Memory that outlives the writer.
#[derive(Clone, Default)]
struct Memory(Arc<Mutex<Vec<u8>>>);

impl Write for Memory {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Writes records of 96 bytes: half of each is the same in all, half differs.
fn write(out: impl Write + Send + 'static, options: WriterOptions) -> u64 {
    let mut writer = CaptureWriter::to_writer(out, "memory", options).unwrap();
    writer.add_interface(&Interface { link_number: 1, snap_len: 96, name: None });
    let mut data = [0x5a; 96];
    let mut noise = 1u64;
    for i in 0..RECORDS {
        for word in data.chunks_exact_mut(8).take(6) {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.copy_from_slice(&noise.to_le_bytes());
        }
        writer.write(0, Nanos(1_700_000_000_000_000_000 + i * 1_000), 1514, &data).unwrap();
    }
    writer.finish().unwrap().packets
}

fn read(file: Cursor<Arc<[u8]>>) -> u64 {
    let mut reader = CaptureReader::from_reader(file, "memory").unwrap();
    let mut sum = 0;
    while let Some(record) = reader.next_record().unwrap() {
        sum += record.time.0 ^ u64::from(record.data.first().copied().unwrap_or(0));
    }
    sum
}

fn captures(criterion: &mut Criterion) {
    let formats = [("pcap", Format::Pcap), ("pcapng", Format::PcapNg)];
    let compressions = [("", Compression::None), (".gz", Compression::Gzip), (".zst", Compression::Zstd)];
    for (verb, reading) in [("read", true), ("write", false)] {
        let mut group = criterion.benchmark_group(verb);
        group.throughput(Throughput::Elements(RECORDS)).sample_size(20);
        for (format_name, format) in formats {
            for (suffix, compression) in compressions {
                let options = WriterOptions { format, compression };
                let memory = Memory::default();
                write(memory.clone(), options);
                let file: Arc<[u8]> = memory.0.lock().unwrap().as_slice().into();
                group.bench_function(format!("{format_name}{suffix}"), |bencher| {
                    if reading {
                        bencher.iter(|| black_box(read(Cursor::new(Arc::clone(&file)))));
                    } else {
                        bencher.iter_batched(
                            std::io::sink,
                            |out| black_box(write(out, options)),
                            BatchSize::PerIteration,
                        );
                    }
                });
            }
        }
        group.finish();
    }
}

criterion_group!(benches, captures);
criterion_main!(benches);
