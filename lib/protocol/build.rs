//! Compiles the protobuf files in `proto/`, without an external compiler.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo::rerun-if-changed=proto");
    let generate = protox::compile(["generate.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        .compile_fds(generate)?;

    // Frames have their own codec, which reads them message by message.
    let speculate = protox::compile(["speculate.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        .codec_path("crate::link::FrameCodec")
        .extern_path(
            ".foretoken.speculation.v1.TargetFrame",
            "crate::link::TargetFrame",
        )
        .extern_path(
            ".foretoken.speculation.v1.DraftFrame",
            "crate::link::DraftFrame",
        )
        .compile_fds(speculate)?;
    Ok(())
}
