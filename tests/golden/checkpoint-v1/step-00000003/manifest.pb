
sample"0123456789abcdef8 BÙ
tensors-00000-of-00001.bin¬2ê†¥””³ì¥šì¶í„±ıåıˆÎëÖÇ±Ëø”®»¾…ê‰øòï¨·ë
"*
"weight/encoder.layers.0.fc1.weight ")
 weight/encoder.layers.0.fc1.bias (<"$
weight/embed_tokens.weight (H"-
#moment1/encoder.layers.0.fc1.weight (d"+
!moment1/encoder.layers.0.fc1.bias ( "&
moment1/embed_tokens.weight (¬".
#moment2/encoder.layers.0.fc1.weight (È"+
!moment2/encoder.layers.0.fc1.bias („"&
moment2/embed_tokens.weight (JıW|³