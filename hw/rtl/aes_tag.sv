// One block of AES-128 (FIPS 197), a round per cycle: 11 cycles from `start` to `done`. Keys of the rounds
// are made on the way. Byte 0 of block and key is bits 7:0, as in a little-endian number of 128 bits, which
// is how the software writes it.
`default_nettype none

module aes_tag (
    input  wire logic         clk,
    input  wire logic         rst,
    input  wire logic [127:0] key,

    input  wire logic         start,
    input  wire logic [127:0] block,
    output wire logic         busy,
    output wire logic         done,
    output wire logic [63:0]  hash
);
    function automatic logic [7:0] times2(input logic [7:0] a);
        times2 = {a[6:0], 1'b0} ^ (a[7] ? 8'h1b : 8'h00);
    endfunction

    // The S-box: FIPS 197, table 4, a row a line, its first byte last.
    function automatic logic [7:0] sub(input logic [7:0] a);
        logic [127:0] row;
        case (a[7:4])
            4'h0: row = 128'h76abd7fe2b670130c56f6bf27b777c63;
            4'h1: row = 128'hc072a49cafa2d4adf04759fa7dc982ca;
            4'h2: row = 128'h1531d871f1e5a534ccf73f362693fdb7;
            4'h3: row = 128'h75b227ebe28012079a059618c323c704;
            4'h4: row = 128'h842fe329b3d63b52a05a6e1b1a2c8309;
            4'h5: row = 128'hcf584c4a39becb6a5bb1fc20ed00d153;
            4'h6: row = 128'ha89f3c507f02f94585334d43fbaaefd0;
            4'h7: row = 128'hd2f3ff1021dab6bcf5389d928f40a351;
            4'h8: row = 128'h73195d643d7ea7c41744975fec130ccd;
            4'h9: row = 128'hdb0b5ede14b8ee4688902a22dc4f8160;
            4'ha: row = 128'h79e4959162acd3c25c2406490a3a32e0;
            4'hb: row = 128'h08ae7a65eaf4566ca94ed58d6d37c8e7;
            4'hc: row = 128'h8a8bbd4b1f74dde8c6b4a61c2e2578ba;
            4'hd: row = 128'h9e1dc186b95735610ef6034866b53e70;
            4'he: row = 128'hdf2855cee9871e9b948ed9691198f8e1;
            default: row = 128'h16bb54b00f2d99416842e6bf0d89a18c;
        endcase
        sub = row[{a[3:0], 3'd0} +: 8];
    endfunction

    logic [127:0] state_reg, key_reg;
    logic [7:0]   rcon_reg;
    logic [3:0]   round_reg;
    logic         busy_reg, done_reg;

    logic [7:0]   shifted_at [16], mixed_at [16];
    logic [127:0] mixed, shifted, key_next;
    logic [31:0]  rotated, key_0, key_1, key_2, key_3;

    // Row r of column c is byte 4c+r; the row moves by r columns.
    genvar c, r;
    generate
        for (c = 0; c < 4; c = c + 1) begin : g_column
            for (r = 0; r < 4; r = r + 1) begin : g_row
                assign shifted_at[4*c+r] = sub(state_reg[8*(4*((c+r)%4)+r) +: 8]);
            end
            for (r = 0; r < 4; r = r + 1) begin : g_mix
                assign mixed_at[4*c+r] = times2(shifted_at[4*c+r])
                    ^ times2(shifted_at[4*c+(r+1)%4]) ^ shifted_at[4*c+(r+1)%4]
                    ^ shifted_at[4*c+(r+2)%4] ^ shifted_at[4*c+(r+3)%4];
            end
        end
    endgenerate
    assign shifted = {
        shifted_at[15], shifted_at[14], shifted_at[13], shifted_at[12],
        shifted_at[11], shifted_at[10], shifted_at[9], shifted_at[8],
        shifted_at[7], shifted_at[6], shifted_at[5], shifted_at[4],
        shifted_at[3], shifted_at[2], shifted_at[1], shifted_at[0]
    };
    assign mixed = {
        mixed_at[15], mixed_at[14], mixed_at[13], mixed_at[12],
        mixed_at[11], mixed_at[10], mixed_at[9], mixed_at[8],
        mixed_at[7], mixed_at[6], mixed_at[5], mixed_at[4],
        mixed_at[3], mixed_at[2], mixed_at[1], mixed_at[0]
    };

    assign rotated  = {sub(key_reg[103:96]), sub(key_reg[127:120]), sub(key_reg[119:112]), sub(key_reg[111:104]) ^ rcon_reg};
    assign key_0    = key_reg[31:0] ^ rotated;
    assign key_1    = key_reg[63:32] ^ key_0;
    assign key_2    = key_reg[95:64] ^ key_1;
    assign key_3    = key_reg[127:96] ^ key_2;
    assign key_next = {key_3, key_2, key_1, key_0};

    assign busy = busy_reg;
    assign done = done_reg;
    assign hash = state_reg[63:0];

    always_ff @(posedge clk) begin
        done_reg <= 1'b0;
        if (busy_reg) begin
            state_reg <= (round_reg == 4'd10 ? shifted : mixed) ^ key_next;
            key_reg   <= key_next;
            rcon_reg  <= times2(rcon_reg);
            round_reg <= round_reg + 4'd1;
            if (round_reg == 4'd10) begin
                busy_reg <= 1'b0;
                done_reg <= 1'b1;
            end
        end else if (start) begin
            state_reg <= block ^ key;
            key_reg   <= key;
            rcon_reg  <= 8'h01;
            round_reg <= 4'd1;
            busy_reg  <= 1'b1;
        end
        if (rst) begin
            busy_reg <= 1'b0;
            done_reg <= 1'b0;
        end
    end
endmodule

`default_nettype wire
