//! Compiles the C side against the DPDK that pkg-config finds, where the feature asks for it.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "libdpdk")]
    dpdk::build();
}

#[cfg(feature = "libdpdk")]
mod dpdk {
    use std::process::Command;

    /// Asks pkg-config for DPDK; ends the build if there is none.
    fn pkg_config(what: &str) -> Vec<String> {
        let done = Command::new("pkg-config").args([what, "libdpdk >= 22.11"]).output();
        let missing = match done {
            Ok(done) if done.status.success() => {
                let text = String::from_utf8_lossy(&done.stdout);
                return text.split_whitespace().map(str::to_owned).collect();
            }
            Ok(done) => String::from_utf8_lossy(&done.stderr).trim().to_owned(),
            Err(error) => format!("pkg-config: {error}"),
        };
        eprintln!("DPDK 22.11 or later is needed: apt-get install libdpdk-dev dpdk pkg-config\n{missing}");
        std::process::exit(1);
    }

    pub(crate) fn build() {
        println!("cargo:rerun-if-changed=src/shim.c");
        let mut shim = cc::Build::new();
        shim.file("src/shim.c").opt_level(3).warnings(true).extra_warnings(true).warnings_into_errors(true);
        for word in pkg_config("--cflags") {
            // DPDK's own headers are not free of warnings.
            match word.strip_prefix("-I") {
                Some(directory) => shim.flag("-isystem").flag(directory),
                None => shim.flag(&word),
            };
        }
        shim.compile("slipstream_dpdk_shim");
        for word in pkg_config("--libs") {
            if let Some(library) = word.strip_prefix("-l") {
                println!("cargo:rustc-link-lib={library}");
            } else if let Some(directory) = word.strip_prefix("-L") {
                println!("cargo:rustc-link-search=native={directory}");
            }
        }
    }
}
