// Makes the token that each entry gives out next, ahead of time: the tag is a block of AES-128, which takes
// 12 cycles, and no packet waits for it. A packet of 500 bytes takes 16 beats of 256 bits, so that one unit
// that does a round per cycle keeps up.
//
// After a new key it walks over all entries and draws the generation that each starts from; then it goes
// round the entries and makes a tag wherever one is missing. Bits as in the software: index 16, generation 48
// - TAG_W, tag TAG_W.
`default_nettype none

module token_maker #(
    parameter int ENTRIES = 250,
    parameter int TAG_W   = 24,
    parameter int GEN_W   = 48 - TAG_W,
    parameter int ENTRY_W = (ENTRIES > 1) ? $clog2(ENTRIES) : 1
) (
    input  wire logic               clk,
    // `rst` ends what is under way; `cold_rst` forgets the key as well.
    input  wire logic               rst,
    input  wire logic               cold_rst,

    input  wire logic               key_load,
    input  wire logic [127:0]       key,
    // A key is there, and every entry has its first generation.
    output wire logic               ready,
    // The walk begins: what waits under an old key is given up.
    output wire logic               forget,

    // The entry that is looked at: its generation, and if its next token is there.
    output wire logic [ENTRY_W-1:0] entry,
    input  wire logic [GEN_W-1:0]   generation,
    input  wire logic               made,

    // Results: the first generation of `entry`, or the tag of its next token.
    output wire logic               put_first,
    output wire logic               put_tag,
    output wire logic [GEN_W-1:0]   first,
    output wire logic [TAG_W-1:0]   tag
);
    localparam logic [ENTRY_W-1:0] LAST = ENTRY_W'(ENTRIES - 1);

    logic [127:0]       key_reg;
    logic [ENTRY_W-1:0] entry_reg;
    logic               keyed_reg, walking_reg, restart_reg;
    logic               busy, done, start;
    logic [63:0]        hash, message;
    logic [GEN_W-1:0]   next_generation;

    assign entry           = entry_reg;
    assign ready           = keyed_reg && !walking_reg && !restart_reg;
    assign forget          = restart_reg && !busy;
    assign next_generation = generation + 1'b1;
    assign message         = walking_reg ? 64'(entry_reg) : 64'({16'(entry_reg), next_generation});
    assign start           = keyed_reg && !busy && !done && !restart_reg && (walking_reg || !made);
    assign put_first       = done && walking_reg;
    assign put_tag         = done && !walking_reg;
    assign first           = hash[GEN_W-1:0];
    assign tag             = hash[TAG_W-1:0];

`ifdef VERILATOR
    // For lint alone: a simulator would compute it at every change of every bit.
    logic unused;
    assign unused = &{1'b0, hash};
`endif

    // Purpose 0 of a hash is a tag, 1 a first generation.
    aes_tag aes (
        .clk(clk), .rst(rst || cold_rst), .key(key_reg), .start(start), .block({63'd0, walking_reg, message}),
        .busy(busy), .done(done), .hash(hash)
    );

    always_ff @(posedge clk) begin
        if (key_load) begin
            key_reg     <= key;
            restart_reg <= 1'b1;
        end else if (restart_reg && !busy && !done) begin
            restart_reg <= 1'b0;
            keyed_reg   <= 1'b1;
            walking_reg <= 1'b1;
            entry_reg   <= '0;
        end else if (keyed_reg && !busy && !start && !restart_reg) begin
            entry_reg <= entry_reg == LAST ? '0 : entry_reg + 1'b1;
            if (walking_reg && entry_reg == LAST) walking_reg <= 1'b0;
        end
        if (cold_rst) begin
            keyed_reg   <= 1'b0;
            walking_reg <= 1'b0;
            restart_reg <= 1'b0;
            entry_reg   <= '0;
        end
    end
endmodule

`default_nettype wire
